"""The text of batch scripts for Slurm: one task a node, which starts the ranks of its node. Pure: nothing is asked or run.

A script resolves the nodes of its own job, so the same text serves any allocation, a requeued one too. Ranks meet at the
first node: by its name where that resolves, else by the address that Slurm has of it, never at localhost. Before the time
limit Slurm signals the script; it ends the step, which saves what it has, and requeues the job.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.launch.ports import FIRST_PORT, PORTS

REPORT_LIMIT = "00:15:00"

_LIMIT = re.compile(r"(?:(?P<days>\d+)-)?(?P<parts>\d+(?::\d+){0,2})")


@record
class Resources:
    """What a job asks Slurm for. None: Slurm's own default. more: further options of sbatch, as one types them."""

    nodes: int
    gpus_per_node: int | None = None
    cpus_per_node: int | None = None
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    more: tuple[str, ...] = ()


@record
class Container:
    """An image that ranks run in. runtime: ``pyxis`` (srun's own option, with enroot) or ``apptainer``."""

    runtime: str
    image: str
    mounts: tuple[str, ...] = ()


@record
class TaskWorld:
    """Ranks that are started together: ``ranks`` on each of ``nodes``. words: what each runs, after Python itself."""

    nodes: int
    ranks: int
    words: tuple[str, ...]


@record
class BatchJob:
    """What one script is about.

    folder, workdir: absolute. typed: the command that made the script. setup: lines of shell before anything else.
    python, rank_python: of the script itself, and of the ranks, which may be in a container. requeues: how often the job
    may begin again. warn_s: seconds before the time limit at which it is signalled.
    """

    name: str
    folder: str
    workdir: str
    typed: str
    resources: Resources
    python: str
    rank_python: str
    setup: tuple[str, ...] = ()
    container: Container | None = None
    requeues: int = 0
    warn_s: int = 120


def limit_s(text: str) -> int:
    """Return the seconds of ``--time``: minutes, ``minutes:seconds``, ``hours:minutes:seconds``, or days before any of
    hours."""
    match = _LIMIT.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"--time {text!r} is not a time of Slurm's", fix="write minutes, 2:00:00, or 1-12:00:00 with days in front"
        )
    parts = [int(part) for part in match["parts"].split(":")]
    if match["days"] is not None:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    else:
        hours, minutes, seconds = {1: (0, *parts, 0), 2: (0, *parts), 3: tuple(parts)}[len(parts)]
    return ((int(match["days"] or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def measuring_text(job: BatchJob, worlds: Sequence[TaskWorld]) -> str:
    """Write a job that measures ``worlds`` one after the other into ``run`` of its folder; begun again, it keeps what is
    there."""
    lines = map(_measure_line, worlds)
    return "\n".join([*_head_lines(job), 'RUN="$FOLDER/run"', *_body_lines(job), _MEASURE, *lines, "exit $CODE", ""])


def array_text(job: BatchJob, worlds: Sequence[TaskWorld], *, run: str, at_once: int | None = None) -> str:
    """Write an array with one task for each of ``worlds``, which measures it into a folder of its own: ``run`` with its
    number."""
    array = f"#SBATCH --array=0-{len(worlds) - 1}" + ("" if at_once is None else f"%{at_once}")
    cases = [f"{number}) {_measure_line(world)} ;;" for number, world in enumerate(worlds)]
    return "\n".join([
        *_head_lines(job, array), f'RUN="$FOLDER/{run}-$SLURM_ARRAY_TASK_ID"', *_body_lines(job), _MEASURE,
        'case "$SLURM_ARRAY_TASK_ID" in', *cases, "esac", "exit $CODE", "",
    ])  # fmt: skip


def _measure_line(world: TaskWorld) -> str:
    return f'measure {world.nodes} {world.ranks} {shlex.join(world.words)} -o "$RUN"'


def watched_text(job: BatchJob, world: TaskWorld, *, watcher: Sequence[str]) -> str:
    """Write a training job under ``watcher``, words of stepscope such as ``run --deep off``; each start has its own
    folder."""
    line = f"watch {world.nodes} {world.ranks} {shlex.join(world.words)}"
    text = _filled_text(_WATCH, WATCHER=shlex.join(watcher))
    run = 'RUN="$FOLDER/run${SLURM_RESTART_COUNT:+-$SLURM_RESTART_COUNT}"'
    return "\n".join([*_head_lines(job), run, *_body_lines(job), text, line, "exit $CODE", ""])


def report_text(job: BatchJob, *, results: str) -> str:
    """Write the job after the others: a report of ``results``, words of shell that name them by ``$FOLDER``."""
    limit = (
        job.resources.time
        if job.resources.time and limit_s(job.resources.time) < limit_s(REPORT_LIMIT)
        else REPORT_LIMIT
    )
    lines = _directive_lines(job, job.name + "-report", Resources(
        nodes=1, time=limit, partition=job.resources.partition, account=job.resources.account
    ))  # fmt: skip
    report = f'exec "$PYTHON" -m stepscope.cli report {results} -o "$FOLDER/report" --force'
    return "\n".join([*lines, *_place_lines(job), report, ""])


def _head_lines(job: BatchJob, *more: str) -> list[str]:
    again = "#SBATCH --requeue" if job.requeues else "#SBATCH --no-requeue"
    signalled = f"#SBATCH --signal=B:USR1@{job.warn_s}"
    return [*_directive_lines(job, job.name, job.resources, *more, signalled, again), *_place_lines(job)]


def _directive_lines(job: BatchJob, name: str, asked: Resources, *more: str) -> list[str]:
    """Return the lines of #SBATCH."""
    log = "%x-%A-%a.out" if any("--array" in line for line in more) else "%x-%j.out"
    options = {
        "job-name": name, "output": f"{job.folder}/logs/{log}", "open-mode": "append", "nodes": asked.nodes,
        "ntasks-per-node": 1, "gpus-per-node": asked.gpus_per_node, "cpus-per-task": asked.cpus_per_node,
        "time": asked.time, "partition": asked.partition, "account": asked.account,
    }  # fmt: skip
    return [
        "#!/bin/bash",
        f"# Written by: {job.typed}",
        *(f"#SBATCH --{key}={_quoted_if_blank(str(value))}" for key, value in options.items() if value is not None),
        *(f"#SBATCH {option}" for option in asked.more),
        *more,
    ]


def _quoted_if_blank(text: str) -> str:
    return f'"{text}"' if re.search(r"\s", text) else text


def _place_lines(job: BatchJob) -> list[str]:
    return [
        f"cd {shlex.quote(job.workdir)} || exit 3", *job.setup, f"PYTHON={shlex.quote(job.python)}",
        f"FOLDER={shlex.quote(job.folder)}",
    ]  # fmt: skip


def _body_lines(job: BatchJob) -> list[str]:
    return [
        f"REQUEUES={job.requeues}", _filled_text(_NODES, PORT=FIRST_PORT, PORTS=PORTS, PYTHON=shlex.quote(job.rank_python)),
        f"TASK={shlex.quote(_TASK)}", _filled_text(_START, TASK=_in_container(job)), _REQUEUE,
    ]  # fmt: skip


def _filled_text(text: str, **values: object) -> str:
    for name, value in values.items():
        text = text.replace(f"@{name}@", str(value))
    return text


def _in_container(job: BatchJob) -> str:
    """Return the end of the line of srun: what starts the shell of a task."""
    shell = 'bash -c "$TASK" task'
    if job.container is None:
        return shell
    mounts = dict.fromkeys([job.workdir, job.folder, *job.container.mounts])
    image = shlex.quote(job.container.image)
    if job.container.runtime == "apptainer":
        nv = "--nv " if job.resources.gpus_per_node else ""
        bind = "".join(f"--bind {shlex.quote(mount)} " for mount in mounts)
        return f"apptainer exec {nv}{bind}{image} {shell}"
    pairs = ",".join(mount if ":" in mount else f"{mount}:{mount}" for mount in mounts)
    return f"--container-image={image} --container-mounts={shlex.quote(pairs)} {shell}"


_NODES = """
# Nodes of this job, and where its ranks meet. Slurm's own addresses serve where names do not resolve.
mapfile -t NODES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
address_of() { scontrol show node "$1" --oneliner | sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p'; }
export STEPSCOPE_HEAD=${NODES[0]} STEPSCOPE_SECOND=${NODES[1]-} STEPSCOPE_PORT=$((@PORT@ + SLURM_JOB_ID % @PORTS@))
STEPSCOPE_HEAD_ADDRESS=$(address_of "$STEPSCOPE_HEAD")
STEPSCOPE_SECOND_ADDRESS=${STEPSCOPE_SECOND:+$(address_of "$STEPSCOPE_SECOND")}
export STEPSCOPE_HEAD_ADDRESS STEPSCOPE_SECOND_ADDRESS STEPSCOPE_PYTHON=@PYTHON@
"""

_TASK = """
# Run by each node: names and numbers are those of the node.
resolved() { if getent ahosts "$1" >/dev/null; then echo "$1"; else echo "$2"; fi; }
head=$(resolved "$STEPSCOPE_HEAD" "$STEPSCOPE_HEAD_ADDRESS")
if [ -z "$head" ]; then
  echo "error: the address of $STEPSCOPE_HEAD is unknown: its name does not resolve, and Slurm has no NodeAddr of it" >&2
  exit 3
fi
if [ "$SLURM_STEP_NUM_NODES" -gt 1 ] && command -v ip >/dev/null; then
  # The interface that leads to another node, unless you have set one.
  peer=$head
  [ "$SLURM_NODEID" != 0 ] || peer=$(resolved "$STEPSCOPE_SECOND" "$STEPSCOPE_SECOND_ADDRESS")
  peer=$(getent ahosts "$peer" | { read -r address _; echo "$address"; })
  device=$(ip -o route get "$peer" 2>/dev/null | sed -n "s/.* dev \\([^ ]*\\).*/\\1/p")
  if [ -n "$device" ]; then
    export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-$device} NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-$device}
  fi
fi
ranks=$1
shift
exec "$STEPSCOPE_PYTHON" -m torch.distributed.run --nnodes="$SLURM_STEP_NUM_NODES" --node-rank="$SLURM_NODEID" \\
  --nproc-per-node="$ranks" --max-restarts=0 --master-addr="$head" --master-port="$STEPSCOPE_PORT" "$@"
"""

_START = """
CODE=0
STOPPING=
PID=
trap 'STOPPING=1; scancel --signal=TERM "$SLURM_JOB_ID"' USR1

# on_nodes NODES COMMAND...: one task on each of the first nodes; one that fails ends the others.
on_nodes() {
  local nodes=$1 names
  shift
  names=$(IFS=,; echo "${NODES[*]:0:$nodes}")
  set -- srun --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --nodelist="$names" --kill-on-bad-exit=1 \\
    ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} "$@"
  LINE=("$@")
}
# ended: waits for PID, also where a signal comes in between; its exit code.
ended() {
  local code
  while wait "$PID"; code=$?; kill -0 "$PID" 2>/dev/null; do :; done
  return "$code"
}
ranks() {
  local nodes=$1
  shift
  on_nodes "$nodes" @TASK@ "$@"
}"""

_REQUEUE = """
# lost_node: whether a node of the job does not answer. Slurm finds out some time after the ranks on the others.
lost_node() {
  sinfo -hN -n "$SLURM_JOB_NODELIST" -o %T | grep -q -e '[*]' -e down -e fail
}
# again CODE: near the time limit, or without a node: begin again behind other jobs.
again() {
  if [ "${SLURM_RESTART_COUNT:-0}" -ge "$REQUEUES" ]; then
    echo "stopped, after ${SLURM_RESTART_COUNT:-0} of $REQUEUES requeues" >&2
    exit "$1"
  fi
  scontrol requeue "$SLURM_JOB_ID" && sleep 600  # Slurm ends this script
  echo "Slurm does not requeue this job: submit the same script again, what is measured is kept" >&2
  exit "$1"
}"""

_MEASURE = """
finished() { grep -Els '"status": *"(ok|oom|host_oom)"' "$RUN"/cells/*/status.json | wc -l; }
AT_START=$(finished)

# measure NODES RANKS COMMAND...: on RANKS ranks of each node. A rank that dies ends its world; what came after it is
# measured by the next one.
measure() {
  local before=-1 left code
  while :; do
    ranks "$1" "$2" "${@:3}"
    "${LINE[@]}" &
    PID=$!
    ended
    code=$?
    if [ -n "$STOPPING" ] && [ "$(finished)" = "$AT_START" ]; then
      echo "the time limit ends this job before a cell is finished: ask for more time, or fewer steps" >&2
      exit "$code"
    fi
    if [ -n "$STOPPING" ] || { [ "$code" != 0 ] && lost_node; }; then again "$code"; fi
    left=$(grep -ls '"status": *"interrupted"' "$RUN"/cells/*/status.json | wc -l)
    if [ "$left" = 0 ] || [ "$left" = "$before" ]; then break; fi
    before=$left
  done
  [ "$code" = 0 ] || CODE=$code
}
"""

_WATCH = """
# watch NODES RANKS COMMAND...: the command on RANKS ranks of each node, under stepscope on this one.
watch() {
  ranks "$1" "$2" "${@:3}"
  "$PYTHON" -m stepscope.cli @WATCHER@ -o "$RUN" -- "${LINE[@]}" &
  PID=$!
  ended
  CODE=$?
  [ -z "$STOPPING" ] || [ "$REQUEUES" = 0 ] || again "$CODE"
}
"""
