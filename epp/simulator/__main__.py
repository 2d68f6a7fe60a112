"""
The command `vllm-sim`: a simulated model server for whoever has no GPU at hand.
"""

import click

try:
    from epp.simulator.replay_command import replay_command
    from epp.simulator.serve_command import serve_command
    from epp.simulator.study.command import study
except ModuleNotFoundError as error:
    raise SystemExit(
        f"vllm-sim: the package {error.name} is missing;"
        " install all it needs with: pip install 'endpoint-picker[simulator]'"
    ) from error


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
def main() -> None:
    """
    Simulate vLLM, without a model and without a GPU.

    Replies are words without sense, but tokens, batches, cache blocks, waiting queues, adapters,
    metrics and errors behave like those of a real server, and each step of the engine takes as long
    as it would on the accelerator that the timing describes. `serve` is such a server; `replay` and
    `study` run its engine in virtual time.
    """


main.add_command(serve_command)
main.add_command(replay_command)
main.add_command(study)


if __name__ == "__main__":
    main()
