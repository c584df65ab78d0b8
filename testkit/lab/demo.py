"""The demonstration: jobs wake instances, run, and give them back; one node never boots.

In:  nothing. Out: a timeline and a table on stdout; exit 0 only if all of it went as it must.
"""

import sys
import time

import processes
from lab import Lab, LabError
from slurm_conf import Group
from watch import NotSeen, is_up

SHOW_NAME = "srun sh -c 'echo \"$SLURMD_NODENAME\"; sleep 10'"


def scenario(show=False):
    groups = [Group("c5", 4), Group("gpu", 2), Group("dark", 1, image="dark", resume_timeout=45)]
    # Jobs run, and nodes are idle, for so long that it is seen.
    with Lab("demo", groups, show=show, suspend_time=12) as lab:
        watch = lab.watch
        watch.zero = time.time()
        watch.say("cluster: partitions c5 (4 nodes), gpu (2 nodes), dark (1 node whose image never boots); all nodes are off")
        pair, pair_at = lab.submit("c5", 2, SHOW_NAME)
        single, single_at = lab.submit("gpu", 1, SHOW_NAME)
        lost, lost_at = lab.submit("dark", 1, "true", "--no-requeue")
        submitted = {pair: pair_at, single: single_at, lost: lost_at}

        def ended(job, state):
            watch.wait(f"job {job} {state}", lambda seen: seen.jobs.get(job) == state, 120)

        ended(pair, "COMPLETED")
        ended(single, "COMPLETED")
        ended(lost, "NODE_FAIL")
        lab.expect(sorted(lab.job_output(pair).split()) == ["c5-1", "c5-2"], f"output of job {pair}: {lab.job_output(pair)!r}")
        lab.expect(lab.job_output(single).split() == ["gpu-1"], f"output of job {single}: {lab.job_output(single)!r}")
        watch.wait("slurm_resume_fail called for dark-1", lambda seen: seen.calls_of("slurm_resume_fail", "dark-1"), 60)
        lab.expect_clean()
        watch.say("all instances are terminated, the mapping is empty, every node is idle and powered down")

        rows = [row(lab, node, job, submitted[job]) for node, job in (("c5-1", pair), ("c5-2", pair), ("gpu-1", single), ("dark-1", lost))]
        for node, instance, running, idle in rows:
            lab.expect(instance, f"the mapping never named an instance for {node}")
            lab.expect(node == "dark-1" or (running and idle), f"no times for {node}: it was not seen running and then idle")
        launched = len(watch.instances)
        lab.expect(launched == len(rows), f"{launched} instances were launched for {len(rows)} nodes")
        if show:
            print_table(rows)
            print("A batch job starts at the next 30 s tick of slurmctld after its nodes are up; that wait is in the third column.")
            print(f"instances launched: {launched}, alive: 0; mapping: empty")


def row(lab, node, job, submitted):
    """(node, instance, seconds submit → running, seconds idle → terminated)"""
    watch = lab.watch
    instance = next(iter(watch.instances_of(node)), "")
    running = watch.first("job", job, lambda state: state == "RUNNING")
    idle = watch.first("node", node, lambda state: state.startswith("IDLE") and is_up({"state": state}), running or 0.0) if running else None
    gone = watch.first("instance", instance, lambda state: state in ("shutting-down", "terminated"))
    return node, instance, running and f"{running - submitted:.1f}", idle and gone and f"{gone - idle:.1f}"


def print_table(rows):
    print(f"\n{'node':8} {'instance':20} {'submit → running':>18} {'idle → terminated':>18}")
    for node, instance, running, idle in rows:
        print(f"{node:8} {instance:20} {(running + ' s') if running else 'never booted':>18} {(idle + ' s') if idle else '-':>18}")
    print()


def main():
    try:
        scenario(show=True)
    except (LabError, NotSeen, RuntimeError, OSError) as error:
        print(f"demo: FAILED: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(processes.supervise(main))
