"""A denoising loop of diffusers with a compiled UNet, under several schedulers."""

import pytest
import torch

from tests.ecosystem.side_by_side import assert_as_eager

diffusers = pytest.importorskip("diffusers")
pytestmark = pytest.mark.full
SCHEDULERS = (
    "DDIMScheduler", "DDPMScheduler", "DPMSolverMultistepScheduler", "EulerDiscreteScheduler",
)  # fmt: skip


def unet():
    torch.manual_seed(0)
    return diffusers.UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        attention_head_dim=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).eval()


@pytest.mark.parametrize("name", SCHEDULERS)
def test_images_are_those_of_eager_mode(name):
    def program(wrap):
        model, scheduler = wrap(unet()), getattr(diffusers, name)(num_train_timesteps=50)
        scheduler.set_timesteps(6)
        numbers = torch.Generator().manual_seed(2)
        image = torch.randn(2, 1, 8, 8, generator=numbers) * scheduler.init_noise_sigma
        extra = {"generator": numbers} if name in ("DDPMScheduler", "DDIMScheduler") else {}
        for time in scheduler.timesteps:
            with torch.no_grad():
                noise = model(scheduler.scale_model_input(image, time), time).sample
            image = scheduler.step(noise, time, image, **extra).prev_sample
        return image

    assert_as_eager(program, hits=3, rtol=1e-3, atol=1e-4)


def test_a_pipeline_takes_a_compiled_unet(tmp_path):
    def program(wrap):
        pipeline = diffusers.DDIMPipeline(wrap(unet()), diffusers.DDIMScheduler())
        pipeline.set_progress_bar_config(disable=True)
        numbers = torch.Generator().manual_seed(2)
        found = pipeline(num_inference_steps=5, generator=numbers, output_type="np").images
        pipeline.save_pretrained(tmp_path)
        loaded = diffusers.UNet2DModel.from_pretrained(tmp_path / "unet")
        return found, loaded.state_dict()

    assert_as_eager(program, hits=3, rtol=1e-3, atol=1e-4)


def test_a_unet_trains_as_in_eager_mode():
    def program(wrap):
        model, scheduler = unet().train(), diffusers.DDPMScheduler()
        step = wrap(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        for _ in range(3):
            clean, noise = torch.randn(2, 1, 8, 8), torch.randn(2, 1, 8, 8)
            times = torch.randint(0, 1000, (2,))
            predicted = step(scheduler.add_noise(clean, noise, times), times).sample
            loss = torch.nn.functional.mse_loss(predicted, noise)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return losses, model.state_dict()

    assert_as_eager(program, rtol=1e-3, atol=1e-4)
