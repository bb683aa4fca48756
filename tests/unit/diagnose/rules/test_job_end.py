"""How a job ended, from its text: who failed first and of what; who only followed is not accused."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.diagnose.engine import diagnose
from stepscope.records.finding import Finding
from stepscope.results.ends.memory import failed_request
from stepscope.results.open import load_evidence

RAISED = (
    "Traceback (most recent call last):",
    '  File "/home/u/run/train.py", line 88, in <module>',
    "    main()",
    '  File "/home/u/run/train.py", line 61, in main',
    "    y = head(x)",
    '  File "/opt/py/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 125, in forward',
    "    return F.linear(input, self.weight, self.bias)",
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x128 and 256x10)",
)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {wanted}. GPU 2 has a total capacity of "
OOM += "40.00 GiB of which 100.00 MiB is free. {who} Of the allocated memory {allocated} is allocated by PyTorch, "
OOM += "and {rest} is reserved by PyTorch but unallocated."


def findings(tmp_path: Path, *lines: str, name: str = "job.log") -> tuple[Finding, ...]:
    path = tmp_path / name
    path.write_text("".join(f"{line}\n" for line in lines))
    return diagnose(load_evidence([path])).findings


def row(rank: int, code: int, time: str, text: str = "") -> list[str]:
    return [
        f"[{rank}]:",
        f"  time      : 2025-02-08_{time}",
        "  host      : w-9",
        f"  rank      : {rank} (local_rank: {rank % 4})",
        f"  exitcode  : {code} (pid: {800 + rank})",
        "  error_file: <N/A>",
        f"  traceback : {text or 'To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html'}",
    ]


@pytest.mark.parametrize(
    ("prefix", "who"),
    [
        ("[rank6]: ", "rank 6"),
        ("6: ", "rank 6"),
        ("[1,6]<stderr>:", "rank 6"),
        ("[default6]:", "rank 6"),
        ("(TrainWorker pid=412, ip=10.6.0.14) [rank6]: ", "rank 6 on 10.6.0.14"),
        ("trainer-2  | [rank6]: ", "rank 6 on trainer-2"),
        ("[pod/job-worker-1/pytorch] [rank6]: ", "rank 6"),
        ("2025-01-24T19:25:31.1Z stderr F [rank6]: ", "rank 6"),
        ("", "a process"),
    ],
)
def test_an_exception_is_named_with_its_rank_and_the_last_place_of_the_user(
    tmp_path: Path, prefix: str, who: str
) -> None:
    (finding,) = findings(tmp_path, *(prefix + line for line in RAISED))
    assert finding.rule == "job-end"
    assert finding.title == f"{who} ended with {RAISED[-1]} (train.py:61 in main)"


def test_a_worker_that_is_named_once_is_known_by_its_process(tmp_path: Path) -> None:
    head = "(Worker pid=77, ip=10.0.0.3) "
    (finding,) = findings(tmp_path, f"{head}[rank4]: {RAISED[0]}", f"{head}NameError: name 'x' is not defined")
    assert finding.ranks == (4,)


@pytest.mark.parametrize(
    ("lines", "title"),
    [
        (("RuntimeError: DataLoader worker (pid 8) is killed by signal: Bus error. ",), "shared memory"),
        (("E0612 03:22:10.5 9 api.py:869] failed (exitcode: -11) local_rank: 5 (pid: 9) of binary: python",),
         "local rank 5 was killed by SIGSEGV"),
        (("srun: error: n7: task 6: Out Of Memory",), "rank 6 on n7 ran out of host memory"),
        (("srun: error: n7: task 2: Killed", "srun: error: n8: tasks 4-7: Terminated"),
         "rank 2 on n7 was killed by SIGKILL"),
        (("mpirun noticed that process rank 9 with PID 0 on node c2 exited on signal 9 (Killed).",), "rank 9 on c2"),
        (("=   RANK 7 PID 23 RUNNING AT cn03", "=   KILLED BY SIGNAL: 11 (Segmentation fault)"),
         "rank 7 on cn03 was killed by SIGSEGV"),
        (("[rank: 2] Child process with PID 9 terminated with code -9. Forcefully terminating",),
         "rank 2 was killed by SIGKILL"),
        (("[ERROR] [launch.py:322:sigkill_handler] ['python', '--local_rank=7'] exits with return code = -9",),
         "a process was killed by SIGKILL"),
        (("[E socket.cpp:957] [c10d] The client socket has timed out after 300s while trying to connect to (n0, 29500).",),
         "no one answers at the rendezvous n0:29500 within 300 s"),
        (("[W socket.cpp:601] [c10d] The client socket has failed to connect to [10.9.0.4]:29555 (errno: 113 - No route to "
          "host).",), "does not reach the rendezvous 10.9.0.4:29555"),
        (("[W socket.cpp:601] [c10d] client socket has failed to connect to n0:29555 (errno: 111 - Connection refused).",),
         "cannot connect to the rendezvous n0:29555"),
        (("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",), "did not meet the others at the rendezvous"),
        (("Timed out after 901 seconds waiting for clients. 3/4 clients joined.",), "only 3 of 4 processes joined"),
        (("x.cu:9: k: block: [0,0,0], thread: [3,0,0] Assertion `t < n` failed.", "RuntimeError: CUDA error: device-side "
          "assert triggered"), "t < n"),
        (("[rank1]: RuntimeError: CUDA error: an illegal memory access was encountered",),
         "rank 1: the device reports an error"),
        (("Parameters which did not receive grad for rank 3: head.w, head.b",), "rank 3: head.w, head.b got no gradient"),
        (("Parameter indices which did not receive grad for rank 3: 4 5",), "rank 3: the parameters with the numbers 4 5"),
        (("Out of memory: Killed process 20133 (python) total-vm:2kB",), "process 20133 ran out of host memory"),
    ],
)  # fmt: skip
def test_forms_of_ends(tmp_path: Path, lines: tuple[str, ...], title: str) -> None:
    first, *_ = findings(tmp_path, *lines)
    assert (first.rule, first.severity) == ("job-end", "problem")
    assert title in first.title


def test_who_failed_first_by_the_launchers_table(tmp_path: Path) -> None:
    table = ["Failures:", *row(1, 1, "01:02:04"), "Root Cause (first observed failure):", *row(2, 1, "01:02:03")]
    first, *_ = findings(tmp_path, *table)
    assert first.title.startswith("rank 2 on w-9 failed first, with exit code 1 at 2025-02-08 01:02:03")
    assert "rank 1 ended after it" in first.evidence
    stopped = ["Failures:", *row(1, -15, "01:02:01"), "Root Cause (first observed failure):", *row(3, -9, "01:02:03")]
    first, *_ = findings(tmp_path, *stopped)
    assert first.title.startswith("rank 3 on w-9 was killed by SIGKILL")


def test_the_only_rank_of_a_table_is_whose_the_traceback_is(tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, *RAISED, "Root Cause (first observed failure):", *row(6, 1, "01:02:03"))
    assert finding.title.startswith("rank 6 on w-9 ended with RuntimeError: mat1")


def test_ranks_that_follow_are_not_accused(tmp_path: Path) -> None:
    lost = (
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:2, remote process exited or there was a network error"
    )
    wait = "[rank{0}]:[E1122 09:36:10.4 ProcessGroupNCCL.cpp:685] [Rank {0}] Watchdog caught collective operation timeout: "
    wait += (
        "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600012 milliseconds"
    )
    every = [f"[rank0]: {lost}", wait.format(1), *(f"[rank3]: {line}" for line in RAISED)]
    first, second = findings(tmp_path, *every)
    assert first.title.startswith("rank 3 ended with RuntimeError: mat1")
    assert "ranks 0 and 1 ended after it" in first.evidence
    assert (second.rule, second.severity) == ("hang-in-log", "warning")


def test_an_abort_of_a_rank_that_waited_is_no_failure_of_its_own(tmp_path: Path) -> None:
    wait = "[rank0]:[E1122 09:36:10.4 x.cpp:685] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, "
    wait += (
        "OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
    )
    every = findings(tmp_path, wait, "Root Cause (first observed failure):", *row(0, -6, "09:36:12"))
    assert [finding.rule for finding in every] == ["hang-in-log"]


def test_a_cancellation_after_a_failure_is_its_consequence(tmp_path: Path) -> None:
    cancelled = "slurmstepd: error: *** STEP 88.0 ON n1 CANCELLED AT 2025-03-02T11:00:01 ***"
    first, *_ = findings(tmp_path, *(f"3: {line}" for line in RAISED), cancelled)
    assert first.title.startswith("rank 3 ended with")
    (alone,) = findings(tmp_path, "*** JOB 5 ON g1 CANCELLED AT 2025-02-02T02:02:02 DUE TO TIME LIMIT ***")
    assert alone.title.startswith("JOB 5 was cancelled on g1")


@pytest.mark.parametrize(
    ("wanted", "who", "allocated", "rest", "words", "command"),
    [
        ("512.00 MiB", "", "30.00 GiB", "9.00 GiB", "fragmentation: 9.00 GiB", "expandable_segments"),
        ("2.00 GiB", "", "38.90 GiB", "600.00 MiB", "it is full, tensors hold 38.9 GiB of 40.0 GiB", None),
        ("20.00 MiB", "", "39.00 GiB", "500.00 MiB", "it is full", None),
        ("2.00 GiB", "Process 7 has 9.90 GiB memory in use. Including non-PyTorch memory, this process has 30.00 GiB memory "
         "in use.", "29.00 GiB", "500.00 MiB", "9.90 GiB belong to other processes on GPU 2", None),
        ("2.00 GiB", "Process 7 has 39.90 GiB memory in use.", "39.00 GiB", "500.00 MiB", "it is full", None),
    ],
)  # fmt: skip
def test_a_failed_request_is_read_by_its_numbers(
    tmp_path: Path, wanted: str, who: str, allocated: str, rest: str, words: str, command: str | None
) -> None:
    text = OOM.format(wanted=wanted, who=who, allocated=allocated, rest=rest)
    for lines in ([f"[rank7]: {text}"], [text[at : at + 90] for at in range(0, len(text), 90)]):
        (finding,) = findings(tmp_path, *lines)
        assert words in finding.title
        assert any("expandable_segments" in (a.command or "") for a in finding.advice) is (command is not None)
        assert finding.ranks == ((7,) if len(lines) == 1 else ())


def test_old_forms_of_a_failed_request() -> None:
    request = failed_request(
        {
            "wanted": "1.00 GiB",
            "capacity": "16.00 GiB",
            "allocated": "9.00 GiB",
            "free": "0.50 GiB",
            "reserved": "9.50 GiB",
        }
    )
    assert (request.cause, request.others) == ("others", 6 << 30)
    assert failed_request({"wanted": "1.00 GiB"}).cause == "unknown"


@pytest.mark.parametrize(
    "line",
    [
        "step 20 TrainError: 0.45", "RMSError: 3.2", "UserWarning: Error in sys.excepthook", "retries after errors: 0",
        "[INFO] no RuntimeError: all well", "Training completed", "WARNING: process group has NOT been destroyed",
    ],
)  # fmt: skip
def test_healthy_lines_are_no_end(tmp_path: Path, line: str) -> None:
    head = "[titan] 2025-07-14 09:00:41,300 - root - INFO - step: {0}  loss:  8.7  memory: 74.9GiB(94.68%)  tps: 6,120"
    lines = [head.format(step) for step in range(1, 13)]
    assert not [f for f in findings(tmp_path, *lines, line) if f.rule == "job-end"]


def test_an_error_that_the_job_outlives_is_no_end(tmp_path: Path) -> None:
    head = "[titan] 2025-07-14 09:00:41,300 - root - INFO - step: {0}  loss:  8.7  memory: 74.9GiB(94.68%)  tps: 6,120"
    steps = [head.format(step) for step in range(1, 13)]
    assert not [f for f in findings(tmp_path, *steps[:4], *RAISED, *steps[4:]) if f.rule == "job-end"]
    (last,) = [f for f in findings(tmp_path, *steps[:11], *RAISED, steps[11]) if f.rule == "job-end"]
    assert "the log ends after step 12" in last.evidence


@pytest.mark.parametrize(
    ("lines", "words", "ranks"),
    [
        (("run.sh: line 12: 44110 Killed                  python a.py",), ("process 44110", "SIGKILL", "host memory"), ()),
        (("[1]    20311 segmentation fault (core dumped)  torchrun b.py",), ("process 20311", "SIGSEGV"), ()),
        (("step 3 loss 2.0", "Bus error (core dumped)"), ("SIGBUS", "/dev/shm"), ()),
        (("x Pod: ml.bert-worker-1 exited with code 137", ""), ("bert-worker-1", "SIGKILL"), ()),
        (("command terminated with exit code 137",), ("SIGKILL",), ()),
        (("Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits. End of file.",),
         ("worker of Ray", "dmesg"), ()),
        (("RuntimeError: connect() timed out. Original timeout was 60000 ms.",), ("rendezvous within 60000 ms",
         "first node"), ()),
        (("RuntimeError: Timed out initializing process group in store based barrier on rank: 5, for key: "
          "store_based_barrier_key:1 (world_size=8, worker_count=6, timeout=0:30:00)",), ("6 of 8 processes",), ()),
        (("[rank12]: torch.distributed.DistBackendError: [4] is setting up NCCL communicator and retrieving ncclUniqueId "
          "from [0] via c10d key-value store by key '0', but store->get('0') got error: Socket Timeout",),
         ("rank 12 (rank 4 in the process group) waited for rank 0 of that group",), (12,)),
        (("[E ProcessGroupNCCL.cpp:821] [Rank 3] Found key in store: NCCLABORTEDCOMM:a0, from rank: 1. This means that",),
         ("rank 1 aborted", "output of rank 1"), ()),
        (("[rank2]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.1.3.9]:"
          "3",),
         ("rank 2 lost the gloo connection to 10.1.3.9",), (2,)),
        (("[rank1]: Parameter at index 73 with name enc.w has been marked as ready twice. This means",),
         ("rank 1", "enc.w", "use_reentrant=False"), (1,)),
        (("3: RuntimeError: CUDA error: uncorrectable ECC error encountered",), ("rank 3", "faulty"), (3,)),
        (("[rank5]: RuntimeError: CUDA error: invalid device ordinal",), ("rank 5", "CUDA_VISIBLE_DEVICES"), (5,)),
        (("[rank0]: RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",),
         ("rank 0", "nvidia-fabricmanager"), (0,)),
        (("Jun 03 11:22:01 gh-07 kernel: NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has "
          "fallen off",),
         ("0000:4e:00 on gh-07 (Xid 79)", "GPU has fallen off"), ()),
        (("2: RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",),
         ("rank 2 ran out",), (2,)),
        (("FileNotFoundError: no such file: '/d/idx.bin'", *row(1, 1, "11:20:01"), "Root Cause (first observed failure):",
          *row(0, 1, "11:20:01")), ("a process ended with FileNotFoundError",), ()),
        (("srun: error: Node failure on c-9", "srun: error: c-8: tasks 0-3: Killed"), ("lost node c-9", "=c-9"), ()),
        (("=   PID 7719 RUNNING AT m3", "=   EXIT CODE: 139"), ("7719 on m3", "SIGSEGV"), ()),
        (("ws7 systemd-oomd[812]: Killed /user.slice/a.scope due to memory pressure for /user.slice being 61.20%",),
         ("host memory",), ()),
        (("[rank3]:[W TCPStore.cpp:106] sendBytes failed on SocketImpl(fd=64, addr=[n2]:4, remote=[n1]:29500): Broken",),
         ("rank 3 lost the connection to the store of n1", "output of rank 0"), (3,)),
        (("Memory access fault by GPU node-4 (Agent handle: 0x8) on address 0x7f0.", "Aborted (core dumped)"),
         ("Memory access fault by GPU node-4",), ()),
        (("[9.2] nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 20034, Fatal, Link 30 LTSSM",), ("NVSwitch",), ()),
        (("[rank1]: RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:825, invalid usage, NCCL version 2.7.8",), ("rank 1",
         "set_device"), (1,)),
        (("  Remote daemon: [[31022,0],3] on node a4",), ("lost node a4",), ()),
        (("(raylet) The node with node id: 9 and address: 10.1.1.8 and node name: x has been marked dead because of x",
          "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task."), ("node 10.1.1.8",), ()),
        (("MPI_ABORT was invoked on rank 6 in communicator X", "with errorcode 7."), ("rank 6", "exit code 7"), (6,)),
        (("  Process name: [[41110,1],5]", "  Exit code:    3"), ("rank 5", "exit code 3"), (5,)),
        (("srun: error: old-4: task 3: Illegal instruction (core dumped)",), ("rank 3 on old-4", "SIGILL", "lscpu"), (3,)),
        (("*** SIGSEGV received at time=1748859161 on cpu 12 ***",), ("SIGSEGV",), ()),
        (("[h3:7712:0:7712] Caught signal 7 (Bus error: nonexistent physical address)",), ("7712 on h3", "SIGBUS"), ()),
        (("[rank4]: munmap_chunk(): invalid pointer",), ("rank 4", "munmap_chunk"), (4,)),
        (("Warning  Evicted  kubelet  The node was low on resource: memory. Threshold",), ("evicted", "memory"), ()),
        (("1: RuntimeError: unable to mmap </torch_4>: No space left on device (28)",), ("rank 1", "shm-size"), (1,)),
        (("[rank2]: triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 9, Hardware limit: 8.",),
         ("rank 2", "needs 9 of shared memory", "num_stages"), (2,)),
        (("[rank1]: RuntimeError: Gloo connectFullMesh failed with [a/pair.cc:144] no error",), ("rank 1", "GLOO"),
         (1,)),
        (("RuntimeError: [a/gloo/transport/tcp/pair.cc:799] connect [127.0.1.1]:3: Connection refused",), ("127.0.1.1",
         "/etc/hosts"), ()),
        (("RuntimeError: [enforce fail at a.cc:83] ifa != nullptr. Unable to find address for: bond1",), ("bond1",), ()),
        (("[171.0] [h3:7712 :0]  ib_mlx5_log.c:171  UCX  ERROR Transport retry count exceeded on mlx5_1:1/IB (synd)",),
         ("mlx5_1 of h3",), ()),
        (("[WARNING] The node 'h-2_411_0' has failed to send a keep-alive heartbeat to the rendezvous 'j7' due to",),
         ("node h-2", "first node"), ()),
        (("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",), ("rendezvous", "--rdzv-id"), ()),
        (("SignalException: Process 9912 got signal: 1",), ("SIGHUP", "tmux"), ()),
        (("[rank3]: numpy.core._exceptions._ArrayMemoryError: Unable to allocate 44.1 GiB for an array",), ("rank 3",
         "host memory"), (3,)),
        (("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
          "Memory on the node (IP: 10.7.3.9, ID: a) where the task was"), ("10.7.3.9", "host memory"), ()),
        (("torch.cuda.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)",
          "Currently allocated     : 21.00 GiB", "Requested               : 1.00 GiB", "Device limit            : 23.00 GiB",
          "Free (according to CUDA): 14.81 MiB"), ("GPU 0", "tensors hold 21.0 GiB of 23.0 GiB"), ()),
        (("c-4: [2025-01-09 10:11:12,118] [ERROR] [launch.py:322:sigkill_handler] ['p'] exits with return code = -11",),
         ("on c-4", "SIGSEGV"), ()),
        (("[rank0]: RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.",), ("rank 0",
         "driver is older"), (0,)),
        (("ERROR 04-01 23:46:56 [a.py:160] " + OOM.format(wanted="1.00 GiB", who="", allocated="39.00 GiB", rest="9.00 MiB"),
          ),
         ("a process ran out of GPU memory", "full"), ()),
    ],
)  # fmt: skip
def test_other_ends_are_read(
    tmp_path: Path, lines: tuple[str, ...], words: tuple[str, ...], ranks: tuple[int, ...]
) -> None:
    finding = findings(tmp_path, *lines)[0]
    assert (finding.rule, finding.ranks) == ("job-end", ranks)
    text = " ".join([finding.title, *(f"{a.text} {a.command or ''}" for a in finding.advice)])
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize(
    ("api", "free", "cause", "setting"),
    [
        ("HIP", "100.00 MiB is free.", "fragmentation", "export PYTORCH_HIP_ALLOC_CONF=expandable_segments:True"),
        ("CUDA", "100.00 MiB is free.", "fragmentation", "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        ("CUDA", "30.00 GiB is free. 9.00 GiB allowed;", "it may take 9.00 GiB only", None),
        ("HIP", "30.00 GiB is free.", "the driver refused although 30.0 GiB are free", None),
    ],
)
@pytest.mark.parametrize("already", [False, True])
def test_what_a_failed_request_lacked(
    tmp_path: Path, api: str, free: str, cause: str, setting: str | None, *, already: bool
) -> None:
    failed = OOM.format(wanted="2.00 GiB", who="", allocated="30.00 GiB", rest="9.00 GiB")
    lines = [failed.replace("100.00 MiB is free.", free).replace("CUDA", api)]
    finding = findings(tmp_path, *([setting or "ls"] if already else []), *lines)[0]
    assert cause in finding.title
    set_by = [a.command for a in finding.advice if "ALLOC_CONF" in (a.command or "")]
    assert set_by == ([setting] if setting and not already else [])
