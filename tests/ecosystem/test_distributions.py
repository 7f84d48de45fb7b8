"""Programs with ``torch.distributions``: samples, log probabilities, divergences, gradients."""

import torch
from torch import distributions, nn

from tests.ecosystem.side_by_side import assert_as_eager


class VariationalAutoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(12, 8)
        self.decode = nn.Linear(4, 12)

    def forward(self, x):
        mean, spread = self.encode(x).chunk(2, -1)
        posterior = distributions.Normal(mean, nn.functional.softplus(spread))
        prior = distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
        likelihood = distributions.Bernoulli(logits=self.decode(posterior.rsample()))
        divergence = distributions.kl_divergence(posterior, prior).sum(-1)
        return (divergence - likelihood.log_prob((x > 0).float()).sum(-1)).mean()


def test_a_variational_autoencoder_trains_as_in_eager_mode():
    def program(wrap):
        model = VariationalAutoencoder()
        step = wrap(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = step(torch.randn(6, 12))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses, model.state_dict()

    assert_as_eager(program, hits=2)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x):
        choice = distributions.Categorical(logits=self.net(x))
        action = choice.sample()
        return action, choice.log_prob(action), choice.entropy()


def test_a_policy_samples_the_actions_of_eager_mode():
    def program(wrap):
        policy = wrap(Policy())
        found = []
        for _ in range(4):
            action, log_prob, entropy = policy(torch.randn(7, 5))
            (log_prob.sum() + entropy.sum()).backward()
            found.append((action, log_prob.detach(), entropy.detach()))
        return found, [p.grad for p in policy.parameters()]

    assert_as_eager(program, hits=2)


def test_a_distribution_made_outside_is_an_argument():
    def likelihood(distribution, x):
        return distribution.log_prob(x), distribution.mean + distribution.variance

    def program(wrap):
        likelihood_ = wrap(likelihood)
        found = []
        for _ in range(4):
            gamma = distributions.Gamma(torch.rand(3) + 1, torch.rand(3) + 1)
            found.append(likelihood_(gamma, torch.rand(5, 3) + 0.1))
        return found

    assert_as_eager(program, hits=2)


def test_a_mixture_and_a_transformed_distribution_have_eager_densities():
    def densities(weights, means, x):
        mixture = distributions.MixtureSameFamily(
            distributions.Categorical(logits=weights), distributions.Normal(means, 1.0)
        )
        transformed = distributions.TransformedDistribution(
            distributions.Normal(means, 2.0), [distributions.transforms.ExpTransform()]
        )
        return mixture.log_prob(x), transformed.log_prob(x.abs().unsqueeze(-1) + 0.1)

    def program(wrap):
        compiled = wrap(densities)
        return [compiled(torch.randn(4), torch.randn(4), torch.randn(6)) for _ in range(4)]

    assert_as_eager(program, hits=2)
