"""Starting and ending the lab's processes.

In:  command lines. Out: processes that end with the lab, whatever happens to it.
Never: ends a process that this run did not start. Names are not looked at, only descent.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
import traceback

PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


def supervise(main):
    """Runs `main()` in a child process and returns its exit status; when it has ended, however it did, so has all it started.

    This process only waits: it is the parent of every orphan below it and collects them at once. (A zombie keeps its
    process group alive, and slurmstepd would wait a minute for such a job to end.)
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")
    driver = os.fork()
    if driver == 0:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, _leave)
        try:
            status = main()
        except KeyboardInterrupt as reason:
            print(f"interrupted ({reason}); everything it started is ended", file=sys.stderr)
            status = 130
        except BaseException:  # noqa: BLE001 - this is the end of the process: show it and say so
            traceback.print_exc()
            status = 70
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the driver by itself
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: kill([driver], number))
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == driver:
            break
    while left := descendants(os.getpid()):
        kill(left)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def _leave(number, _frame):
    """A signal ends the driver through every `with` and `finally`."""
    raise KeyboardInterrupt(signal.Signals(number).name)


def ours():
    """Every process that this run started and that still lives, orphans included; not the driver itself."""
    return [pid for pid in descendants(os.getppid()) if pid != os.getpid()]


def start(command, log_path, env=None, cwd=None):
    """Starts a process in a session of its own, its output appended to `log_path`."""
    with open(log_path, "ab") as log:
        return subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )


def _stat(pid):
    """(parent, state) of a process, None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1]), fields[0]


def descendants(root):
    """Every living process below `root`, children before grandchildren."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            stat = _stat(int(entry))
            if stat and stat[1] != "Z":
                children.setdefault(stat[0], []).append(int(entry))
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(0), [])
        found += below
        queue += below
    return found


def with_marker(marker):
    """Processes of this run whose environment holds `marker` (NAME=value): an instance's daemons, wherever they forked to."""
    wanted, found = marker.encode(), []
    for pid in ours():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.append(pid)
        except OSError:
            continue
    return found


def kill(pids, number=signal.SIGKILL):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def stop(process, grace=5.0):
    """SIGTERM, then SIGKILL after `grace` seconds, to one child."""
    if process is None or process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()  # it is gone as soon as the machine has a moment


def end_all(grace=3.0):
    """Ends every process of this run: politely, then with SIGKILL."""
    deadline = time.monotonic() + grace
    kill(ours(), signal.SIGTERM)
    while ours() and time.monotonic() < deadline:
        time.sleep(0.05)
    while left := ours():
        kill(left)
        time.sleep(0.05)
