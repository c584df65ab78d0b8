"""Ten runs of slurm_resume at the same time, started by slurmctld while EC2 does not answer.

EC2 (moto) is stopped with SIGSTOP, ten nodes are powered up one after another, so that ten programs hang in their calls;
then EC2 goes on. Each node must end with one instance of its own.
"""

import signal
from pathlib import Path

import processes
from lab import Lab
from slurm_conf import Group
from watch import is_up

COUNT = 10


def scenario():
    # The programs' own deadline is half of ResumeTimeout at most; EC2 is away for some 15 s of it, on a slow machine for a minute.
    patience = {"launch": 'deadline = "400s"\n', "aws": 'attempt_timeout = "400s"\noperation_timeout = "400s"\n'}
    with Lab("concurrent", [Group("c5", COUNT)], resume_timeout=900, suspend_time=3600, **patience) as lab:
        watch = lab.watch
        nodes = lab.groups[0].nodes
        lab.cloud.process.send_signal(signal.SIGSTOP)
        watch.say("EC2 does not answer from here on")
        for node in nodes:
            lab.power_up(node)
            watch.wait(f"slurm_resume called for {node}", lambda seen, node=node: seen.calls_of("slurm_resume", node), 30)
        # Each was called; its wrapper may not have got so far.
        watch.wait(f"{COUNT} runs of slurm_resume at the same time", lambda _seen: sum(map(runs_resume, processes.ours())) == COUNT, 15)
        lab.cloud.process.send_signal(signal.SIGCONT)
        watch.say("EC2 answers again")
        watch.wait("all nodes up", lambda seen: all(is_up(seen.nodes.get(node)) for node in nodes), 120)
        instances = [watch.instances_of(node) for node in nodes]
        lab.expect(all(len(found) == 1 for found in instances), f"instances by node: {dict(zip(nodes, instances))}")
        lab.expect(len({found[0] for found in instances}) == COUNT, f"nodes share instances: {dict(zip(nodes, instances))}")
        lab.expect(len(watch.instances) == COUNT, f"{len(watch.instances)} instances were launched for {COUNT} nodes")
        lab.power_down()
        lab.expect_clean(90)


def runs_resume(pid):
    try:
        return b"bin/slurm_resume\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
