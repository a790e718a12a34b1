"""A run's state, to and from a checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megalith.checkpoint.load import find_checkpoint, has_checkpoint, load_tensors
from megalith.checkpoint.manifest import Manifest, read_manifest
from megalith.checkpoint.save import require_writable, save_checkpoint
from megalith.checkpoint.storage import write_text
from megalith.config.files import to_yaml
from megalith.config.schema import CheckpointConfig, RunConfig, from_dict, to_dict
from megalith.errors import MegalithError
from megalith.nn.shard import ShardedTensor, sharded_parameters
from megalith.train import lines
from megalith.train.assemble import Run
from megalith.train.progress import Progress
from megalith.train.step import TrainStep

_MAIN = "optimizer/main/"


class Checkpoints:
    """Saves a run where and when it is configured to."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._config = run.config.checkpoint
        self._newest = run.progress.iteration

    def due(self, iteration: int) -> bool:
        """Whether `--save-interval` asks for a checkpoint after that iteration."""
        interval = self._config.save_interval
        return interval is not None and iteration % interval == 0

    def save_if_new(self) -> None:
        """Writes a checkpoint, unless there is no `--save` or this iteration has one.

        Beside the checkpoints lie the settings, for `--config`.
        """
        run, iteration = self._run, self._run.progress.iteration
        if self._config.save is None or iteration == self._newest:
            return
        run.log.say(lines.saving_line(iteration, self._config.save, "safetensors"))
        save_checkpoint(
            self._config.save,
            iteration,
            _tensors(run.step, self._config.save_optim),
            _state(run),
            to_dict(run.config),
            run.mesh,
            retain_interval=self._config.save_retain_interval,
        )
        if run.mesh.is_main:
            write_text(Path(self._config.save) / "config.yaml", to_yaml(run.config))
        self._newest = iteration
        run.log.say(lines.saved_line(iteration, self._config.save))


def restore(run: Run) -> None:
    """Continues from the checkpoint that the configuration names, if it names one.

    With `--finetune` only the weights are taken and all counters start at zero; with
    `--no-load-optim` the optimizer starts anew. Main weights that are not loaded are taken from the
    model's.

    Raises:
        MegalithError: there is none, though one is asked for; or it is of another run; or nothing
            could be saved where `--save` says.
    """
    config = run.config.checkpoint
    folder = checkpoint_to_load(config)
    if config.save is not None:
        require_writable(config.save, run.mesh)
    if folder is None:
        _require_empty(config)
        if config.load is not None:
            run.log.say(f"note: --load {config.load} has no checkpoint yet: training starts anew")
        return
    manifest = read_manifest(folder)
    run.log.say(lines.loading_line(manifest.iteration, str(config.load)))
    with_optimizer = config.load_optim and not config.finetune
    if not config.finetune:
        _require_same_run(manifest, run)
    wanted = _wanted(run.step, manifest, with_optimizer)
    load_tensors(folder, wanted, run.mesh, convert=not with_optimizer)
    if not (with_optimizer and _has_main(manifest)):
        run.step.optimizer.refresh_main()
    if config.finetune:
        return
    run.progress = Progress.from_dict(manifest.state["progress"])
    if with_optimizer:
        run.step.optimizer.steps = manifest.state["optimizer_steps"]
        run.step.scaler.load_state(manifest.state["scaler"])
        run.schedules = run.schedules.resumed(manifest.state["schedules"], run.config.optimizer)


def _require_empty(config: CheckpointConfig) -> None:
    """A run that starts anew must not mix its checkpoints with another's."""
    if config.save is not None and has_checkpoint(config.save):
        raise MegalithError(
            f"--save {config.save}: holds checkpoints already, and this run would start anew and "
            f"overwrite them. Add --load {config.save} to go on from the newest, or name another "
            f"folder."
        )


def saved_run(config: CheckpointConfig) -> RunConfig | None:
    """The settings of the run that `--load` names a checkpoint of; None for a fresh start."""
    folder = checkpoint_to_load(config)
    return None if folder is None else from_dict(RunConfig, read_manifest(folder).config)


def checkpoint_to_load(config: CheckpointConfig) -> Path | None:
    """The folder of the checkpoint to start from; None for a fresh start.

    Raises:
        MegalithError: there is none, though `--load` names a folder of its own or
            `--exit-on-missing-checkpoint` asks for one.
    """
    if config.load is None:
        return None
    starts_here = (
        config.save is not None and Path(config.load).resolve() == Path(config.save).resolve()
    )
    fresh_allowed = starts_here and not config.exit_on_missing_checkpoint
    if fresh_allowed and config.ckpt_step is None and not has_checkpoint(config.load):
        return None
    return find_checkpoint(config.load, config.ckpt_step)


def _state(run: Run) -> dict[str, Any]:
    """All that a resumed run needs besides tensors, as JSON."""
    config = run.config
    state: dict[str, Any] = {
        "progress": run.progress.to_dict(),
        "scaler": run.step.scaler.state(),
        "schedules": run.schedules.state(),
        "data": run.datasets.identity,
        "tokenizer": run.tokenizer.identity,
    }
    if config.checkpoint.save_rng:
        state["seed"] = config.training.seed
    if config.checkpoint.save_optim:
        state["optimizer_steps"] = run.step.optimizer.steps
    return state


def _tensors(step: TrainStep, with_optimizer: bool) -> dict[str, ShardedTensor]:
    tensors = sharded_parameters(step.model)
    return tensors | step.optimizer.tensors() if with_optimizer else tensors


def _wanted(step: TrainStep, manifest: Manifest, with_optimizer: bool) -> dict[str, ShardedTensor]:
    tensors = sharded_parameters(step.model)
    if not with_optimizer:
        return tensors
    if not any(name.startswith("optimizer/") for name in manifest.tensors):
        raise MegalithError(
            f"the checkpoint {manifest.folder} was saved without its optimizer (--no-save-optim). "
            "Add --no-load-optim to go on with a new optimizer, or --finetune to start at "
            "iteration 0."
        )
    optimizer = step.optimizer.tensors()
    if not _has_main(manifest):
        optimizer = {n: t for n, t in optimizer.items() if not n.startswith(_MAIN)}
    return tensors | optimizer


def _has_main(manifest: Manifest) -> bool:
    return any(name.startswith(_MAIN) for name in manifest.tensors)


def _require_same_run(manifest: Manifest, run: Run) -> None:
    """A run goes on only with the data, tokenizer and seed that it began with."""
    differences = []
    saved = manifest.state
    if saved["tokenizer"] != run.tokenizer.identity:
        differences.append("the tokenizer (or its files) is another one")
    differences += _changes(saved["data"], run.datasets.identity)
    seed = run.config.training.seed
    if run.config.checkpoint.load_rng and saved.get("seed", seed) != seed:
        differences.append(
            f"--seed was {saved['seed']} and is {seed} (--no-load-rng goes on with the new one)"
        )
    if differences:
        raise MegalithError(
            f"the checkpoint {manifest.folder} belongs to another run than the one configured, so "
            "going on from it would not continue it:"
            + "".join(f"\n  - {difference}" for difference in differences)
            + "\nGive what it was trained with, or start a new run from its weights with "
            "--finetune."
        )


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} of the data was {before.get(name)} and is {now.get(name)}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
