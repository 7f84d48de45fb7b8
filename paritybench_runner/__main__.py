"""The command `python -m paritybench_runner`."""

from paritybench_runner.cli import main

if __name__ == "__main__":
    main(prog_name="paritybench_runner")
