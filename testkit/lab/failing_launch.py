"""A launch that EC2 refuses (its launch template does not exist): the job is requeued, the node comes back with the reason.

The other group of the same call is not held up.
"""

from lab import Lab
from slurm_conf import Group
from watch import is_off


def scenario():
    with Lab("failing-launch", [Group("c5", 1), Group("bad", 2, template_exists=False)]) as lab:
        watch = lab.watch
        bad, _ = lab.submit("bad", 2, "true")
        good, _ = lab.submit("c5", 1, "srun hostname")
        # The failure may come faster than the watch looks, so what is asked for is what stays: the call and the job's restart.
        watch.wait("slurm_resume called for bad-1", lambda seen: seen.calls_of("slurm_resume", "bad-1"), 60)
        watch.wait(f"job {bad} requeued", lambda _seen: " Restarts=1 " in f"{lab.shown('job', '-o', bad)} ", 30)
        for node in ("bad-1", "bad-2"):
            watch.wait(f"{node} idle and off with the reason", lambda seen, node=node: came_back(seen, node), 60)
        watch.wait("slurm_suspend called for the node whose launch failed", lambda seen: seen.calls_of("slurm_suspend", "bad-1"), 60)
        lab.expect(not watch.calls_of("slurm_resume_fail"), f"slurm_resume_fail was called, so a node waited for ResumeTimeout: {watch.calls}")
        lab.command(["scancel", bad])
        watch.wait(f"job {good} COMPLETED", lambda seen: seen.jobs.get(good) == "COMPLETED", 120)
        lab.expect(len(watch.instances) == 1, f"{len(watch.instances)} instances were launched, only c5-1 needed one")
        lab.expect_clean()


def came_back(watch, node):
    now = watch.nodes.get(node)
    return is_off(now) and now["reason"].startswith("(Code:")
