"""The end-to-end tests: every scenario on a real slurmctld and moto, each in a lab of its own.

    e2e.py [SCENARIO…]

In:  names of scenarios, else all. Out: a line for each, then `N passed, N failed`; exit 1 if one failed.
"""

import sys
import time
import traceback
from pathlib import Path

import concurrent_resumes
import crash_restart
import daemons
import demo
import failing_launch
import node_boot
import parallelcluster
import parallelcluster_daemons
import processes
import requeue_now
import shipped_conf
import slurm_user
from lab import LabError
from watch import NotSeen

SCENARIOS = {
    "node-boot": node_boot.scenario,
    "shipped-conf": shipped_conf.scenario,
    "demo": demo.scenario,
    "failing-launch": failing_launch.scenario,
    "requeue-now": requeue_now.scenario,
    "concurrent-resumes": concurrent_resumes.scenario,
    "crash-restart": crash_restart.scenario,
    "slurm-user": slurm_user.scenario,
    "daemons-gone": daemons.gone,
    "daemons-orphan": daemons.orphan,
    "daemons-dark": daemons.dark,
    "daemons-static": daemons.static,
    "daemons-fleet": daemons.fleet,
    "parallelcluster": parallelcluster.scenario,
    "parallelcluster-failures": parallelcluster.failures,
    "parallelcluster-daemons": parallelcluster_daemons.scenario,
}


def main():
    chosen = sys.argv[1:] or list(SCENARIOS)
    unknown = [name for name in chosen if name not in SCENARIOS]
    if unknown:
        print(f"e2e: no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}", file=sys.stderr)
        return 2
    passed = failed = 0
    for name in chosen:
        print(f"e2e {name} … ", end="", flush=True)
        started = time.monotonic()
        problem = attempt(SCENARIOS[name])
        print(f"{'FAILED' if problem else 'ok'} ({time.monotonic() - started:.0f} s)", flush=True)
        if problem:
            failed += 1
            print(problem, flush=True)
        else:
            passed += 1
    print(f"\n{passed} passed, {failed} failed")
    return 1 if failed else 0


def attempt(scenario):
    """None, or what went wrong with the ends of the logs that show it."""
    try:
        scenario()
    except (LabError, NotSeen) as error:
        return f"  {error}\n{log_ends(error)}"
    except Exception as error:  # noqa: BLE001 - a broken scenario is a failed one; the others still run
        return traceback.format_exc() + log_ends(error)
    return None


def log_ends(error, lines=25):
    root = getattr(error, "lab_root", None)
    if root is None:
        return ""
    parts = []
    for path in [root / "log/timeline.log", *sorted(Path(root, "ec2-log").glob("*"))]:
        if path.is_file():
            tail = path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
            parts.append(f"  --- end of {path}\n" + "\n".join(f"  {line[:400]}" for line in tail))
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(processes.supervise(main))
