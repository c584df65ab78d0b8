"""EC2 has no instance for the partition that Slurm tries first: the job runs in the other one at once, not two minutes later (B85).

A job that only the empty partition would take waits as Slurm has it, and a begin time of its owner stays.
"""

import time

from lab import Lab
from slurm_conf import Group

BEGIN = 3600  # seconds
WAIT = 121  # seconds that Slurm lets a requeued job wait


def scenario():
    groups = [Group("full", 4), Group("c5", 4)]
    with Lab("requeue-now", groups, launch='requeue_now = true\nbackoff_capacity = "2h"\n', empty_templates=("lab-full",)) as lab:
        watch = lab.watch
        own, _ = lab.submit("full,c5", 1, "true", f"--begin=now+{BEGIN}seconds")
        stuck, _ = lab.submit("full", 1, "true")
        watch.wait(f"job {stuck} requeued", lambda _seen: field(lab, stuck, "Restarts") == "1", 60)
        requeued = time.monotonic()
        watch.wait(f"a word about job {stuck} in the log", lambda _seen: said(lab, stuck, "too few free nodes"), 30)
        still_waits(lab, stuck, requeued)
        # The group rests now: its nodes fail without a question to EC2, and each of the jobs has a free node elsewhere.
        asked = len(lab.door.asked)
        moved, _ = lab.submit("full,c5", 2, "srun hostname")
        array, _ = lab.submit("full,c5", 1, "true", "--array=1-2", "--exclusive")
        for job in (moved, f"{array}_1", f"{array}_2"):
            watch.wait(f"job {job} COMPLETED", lambda seen, job=job: seen.jobs.get(job) == "COMPLETED", 115)
            lab.expect(wait_of(lab, job) < WAIT - 20, f"job {job} could start only {wait_of(lab, job)} s after it was requeued")
        lab.expect(field(lab, moved, "Partition") == "c5", f"job {moved} ran in partition {field(lab, moved, 'Partition')}")
        restarts = int(field(lab, moved, "Restarts"))
        lab.expect(1 <= restarts <= 5, f"job {moved} was restarted {restarts} times")
        lab.expect(said(lab, moved, "may start now"), f"the log does not say that job {moved} may start now")
        lab.expect("lab-full" not in lab.door.asked[asked:], f"EC2 was asked for a resting group: {lab.door.asked}")
        still_waits(lab, stuck, requeued)
        # sbatch reckons from the moment it was called.
        waits = wait_of(lab, own)
        lab.expect(BEGIN - 60 <= waits <= BEGIN, f"the begin time of job {own} is {waits} s after its submission, its owner asked for {BEGIN}")
        lab.command(["scancel", own, stuck])
        lab.expect_clean(90)


def still_waits(lab, job, requeued):
    """Slurm's own wait was left to it; on a slow machine it may be over by now."""
    restarts, waits = field(lab, job, "Restarts"), wait_of(lab, job)
    is_over = time.monotonic() - requeued > WAIT - 20
    lab.expect(is_over or (restarts == "1" and waits > WAIT - 20), f"job {job} waits {waits} s after {restarts} restarts, it could go nowhere")


def wait_of(lab, job):
    """Seconds from its submission or requeue until it may start."""
    return int(field(lab, job, "EligibleTime")) - int(field(lab, job, "SubmitTime"))


def field(lab, job, key):
    text = lab.command(["scontrol", "show", "job", "-o", job], env={"SLURM_TIME_FORMAT": "%s"})
    return next(word.partition("=")[2] for word in text.split() if word.startswith(f"{key}="))


def said(lab, job, words):
    log = (lab.root / "ec2-log/slurm_resume.log").read_text(encoding="utf-8")
    return any(words in line and f"job={job} " in f"{line} " for line in log.splitlines())
