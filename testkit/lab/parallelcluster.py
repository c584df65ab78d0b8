"""Our programs at the place of ParallelCluster's: real slurmctld, sudo, moto's EC2, DynamoDB and Route 53.

`scenario`: jobs over static and dynamic nodes, of RunInstances and CreateFleet; then two resumes and a suspend at the same time.
`failures`: what the package's clustermgtd and CloudWatch filters rely on, when a launch fails, a node never registers, or the
heartbeat is old.
"""

import datetime
import json
import re
import signal

import processes
from head_node import DOMAIN, HEAD_IP, HEAD_NAME, TABLE, HeadNode, Resource
from watch import is_off, is_up

# As ParallelCluster sets it. Slurm 22.05 stands still for some 10 s per node when a job is requeued whose nodes have no address.
PATIENT = {"MessageTimeout": 60}
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - \d+ - \[[\w.]+:\w+\] - (DEBUG|INFO|WARNING|ERROR|CRITICAL) - \S")


def scenario():
    resources = [
        Resource("apple", "core", static=2, dynamic=4),
        Resource("apple", "peel-small", static=0, dynamic=2),
        # A name that a careless split takes apart at the wrong place.
        Resource("pear-dy-2", "mixod", static=0, dynamic=3, api="create-fleet"),
    ]
    with HeadNode("parallelcluster", resources, suspend_time=3600, extra=PATIENT) as lab:
        watch = lab.watch
        checked = lab.check()
        lab.expect(checked.count(": fine") == 2, f"slurm-ec2 check says: {checked}")
        mixed = ["apple-st-core-1", "apple-dy-core-1", "apple-dy-core-2", "apple-dy-peel-small-1"]
        job, _ = lab.submit("apple", len(mixed), "srun hostname", f"--nodelist={','.join(mixed)}")
        fleet, _ = lab.submit("pear-dy-2", 2, "srun hostname")
        for one in (job, fleet):
            watch.wait(f"job {one} COMPLETED", lambda seen, one=one: seen.jobs.get(one) == "COMPLETED", 150)
        up = [*mixed, "pear-dy-2-dy-mixod-1", "pear-dy-2-dy-mixod-2"]
        published(lab, up)
        lab.expect(set(lab.items()) == set(up), f"items of other nodes: {sorted(set(lab.items()) - set(up))}")
        first, second = ["apple-dy-core-3", "apple-dy-core-4"], ["apple-st-core-2", "apple-dy-peel-small-2"]
        at_the_same_time(lab, up[1:3], first, second)
        log = (lab.root / "ec2-log/slurm_resume.log").read_text(encoding="utf-8")
        odd = [line for line in log.splitlines() if not LINE.match(line)]
        lab.expect(log and not odd, f"lines that the package would not write: {odd[:3]}")
        lab.expect((lab.root / "ec2-log/slurm_suspend.log").stat().st_size, "slurm_suspend.log is empty")
        lab.power_down()
        lab.expect_clean(150)
        share = lab.root / "share"
        lab.settles(lambda: [f"a wrapper left its copy of the resume file: {path.name}" for path in share.iterdir()])


def at_the_same_time(lab, going, first, second):
    """EC2 does not answer while two resumes and a suspend are under way; then it does."""
    watch = lab.watch
    gone = [watch.mapping["nodes"][node]["instance_id"] for node in going]
    lab.cloud.process.send_signal(signal.SIGSTOP)
    watch.say("EC2, DynamoDB and Route 53 do not answer from here on")
    for nodes in (first, second):
        lab.power_up(*nodes)
        watch.wait(f"slurm_resume called for {nodes[0]}", lambda seen, nodes=nodes: seen.calls_of("slurm_resume", nodes[0]), 30)
    lab.command(["scontrol", "update", f"nodename={','.join(going)}", "state=power_down_force", "reason=lab"])
    watch.wait(f"slurm_suspend called for {going[0]}", lambda seen: seen.calls_of("slurm_suspend", going[0]), 30)
    # They were called; wrapper and sudo may not have got so far.
    watch.wait("two resumes at the same time", lambda _seen: running(lab, "slurm_resume") == 2, 10)
    watch.wait("a suspend meanwhile", lambda _seen: running(lab, "slurm_suspend") == 1, 10)
    lab.cloud.process.send_signal(signal.SIGCONT)
    watch.say("they answer again")
    watch.wait("all of them up", lambda seen: all(is_up(seen.nodes.get(node)) for node in first + second), 120)
    watch.wait(
        "the instances of the suspended nodes terminated",
        lambda seen: all(seen.instances[one]["state"] in ("shutting-down", "terminated") for one in gone),
        60,
    )
    published(lab, first + second)
    instances = [watch.mapping["nodes"][node]["instance_id"] for node in first + second]
    lab.expect(len(set(instances)) == len(instances), f"nodes share instances: {instances}")


def running(lab, program):
    """Runs of one of our programs itself, not of sudo or the wrapper."""
    binary = str(lab.root / "programs/bin" / program).encode()
    count = 0
    for pid in processes.ours():
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                count += file.read().split(b"\0")[0] == binary
        except OSError:
            continue
    return count


def published(lab, nodes):
    """The item, the record and Slurm's address of each node are those of the instance that the mapping names, to the letter."""
    lab.watch.wait("every node mapped", lambda seen: all(node in seen.mapping["nodes"] for node in nodes), 60)
    lab.watch.wait("every node up", lambda seen: all(is_up(seen.nodes.get(node)) for node in nodes), 60)
    lab.settles(lambda: unpublished(lab, nodes))


def unpublished(lab, nodes):
    mapping, items, records, shown = lab.watch.mapping["nodes"], lab.items(), lab.records(), lab.watch.nodes
    problems = []
    for node in nodes:
        instance = lab.watch.instances[mapping[node]["instance_id"]]
        expected = {"Id": node, "InstanceId": instance["id"], "HeadNodePrivateIp": HEAD_IP, "HeadNodeHostname": HEAD_NAME}
        item, record, address = items.get(node), records.get(f"{node}.{DOMAIN}"), instance["address"]
        text = lab.command(["scontrol", "show", "node", node])
        checks = [
            (item == {key: {"S": value} for key, value in expected.items()}, f"the item of {node} is {item}"),
            (record == (120, [address]), f"the record of {node} is {record}, its address {address}"),
            (shown[node]["address"] == address, f"NodeAddr of {node} is {shown[node]['address']}"),
            (f"NodeHostName={node} " in text, f"NodeHostName of {node} is not its name: {text}"),
        ]
        problems += [problem for holds, problem in checks if not holds]
    return problems


def failures():
    resources = [
        Resource("apple", "core", static=0, dynamic=2),
        Resource("rotten", "core", static=0, dynamic=2, template_exists=False),
        Resource("dark", "core", static=0, dynamic=1, image="dark", resume_timeout=45),
    ]
    with HeadNode("parallelcluster-failures", resources, suspend_time=3600, extra=PATIENT) as lab:
        watch = lab.watch
        never_up = "dark-dy-core-1"
        lab.power_up(never_up)
        refused(lab, ["rotten-dy-core-1", "rotten-dy-core-2"])
        too_late(lab, never_up)
        stale_heartbeat(lab, "apple-dy-core-2")
        good, _ = lab.submit("apple", 1, "srun hostname")
        watch.wait(f"job {good} COMPLETED", lambda seen: seen.jobs.get(good) == "COMPLETED", 120)
        lab.power_down()
        lab.expect_clean(90)


def refused(lab, nodes):
    """EC2 refuses the launch: nodes down with the package's reason, one event; the other queue is not held up."""
    job, _ = lab.submit("rotten", len(nodes), "true")
    for node in nodes:
        lab.watch.wait(f"{node} down with its code", lambda seen, node=node: down_for(seen, node, "(Code:InvalidLaunchTemplateName"), 60)
    event = lab.watch.wait("an event of the failed launch", lambda _seen: failure_event(lab.root / "ec2-log/slurm_resume.events"), 20)
    detail = event["detail"]
    head = (event["scheduler"], event["component"], event["level"])
    lab.expect(head == ("slurm", "slurm-resume", "WARNING"), f"the event is {event}")
    lab.expect((detail["failure-type"], detail["count"]) == ("other-failures", len(nodes)), f"the event's detail is {detail}")
    named = [node["name"] for code in detail["error-details"].values() for node in code["nodes"]]
    lab.expect(sorted(named) == nodes, f"the event names {named}")
    lab.expect(not [node for node in nodes if node in lab.items()], f"{TABLE} has items of nodes without instances")
    lab.command(["scancel", job])
    as_clustermgtd(lab, nodes)


def failure_event(path):
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    events = [json.loads(line) for line in lines if line.endswith("\n")]
    return next((event for event in events if event["event-type"] == "node-launch-failure-count"), None)


def too_late(lab, node):
    """A node that never registers: ResumeFailProgram is slurm_suspend, which terminates and leaves state and address as evidence."""
    watch = lab.watch
    instance = watch.wait(f"{node} mapped", lambda seen: seen.instances_of(node), 60)[-1]
    address = watch.wait("its instance", lambda seen: seen.instances.get(instance), 10)["address"]
    watch.wait("its instance terminated after ResumeTimeout", lambda seen: seen.instances[instance]["state"] == "terminated", 90)
    watch.wait(f"slurm_suspend called for {node}", lambda seen: seen.calls_of("slurm_suspend", node), 60)
    now = watch.wait(f"{node} down and off", lambda seen: (now := down_for(seen, node, "")) and "POWERED_DOWN" in now["state"] and now, 60)
    # By both together the package's clustermgtd counts boot timeouts (its protected mode).
    lab.expect(now["address"] == address, f"{node} is {now}, its instance had {address}")
    as_clustermgtd(lab, [node])


def stale_heartbeat(lab, node):
    """Nobody would clean up: nothing is launched, and the node goes down with the package's reason."""
    lab.heart.stop()
    lab.heart.beat(datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=1))
    before = len(lab.watch.instances)
    lab.power_up(node)
    lab.watch.wait(f"{node} down", lambda seen: down_for(seen, node, "Failure when resuming nodes"), 60)
    lab.expect(len(lab.watch.instances) == before, "instances were launched though no clustermgtd is alive")
    lab.heart.start()
    as_clustermgtd(lab, [node])


def down_for(watch, node, reason):
    now = watch.nodes.get(node)
    return now if now and now["state"].startswith("DOWN") and now["reason"].startswith(reason) else None


def as_clustermgtd(lab, nodes):
    """What the package's daemon does with nodes that are down."""
    addresses = ",".join(nodes)
    reset = [f"nodename={addresses}", f"nodeaddr={addresses}", f"nodehostname={addresses}"]
    lab.command(["scontrol", "update", *reset, "state=power_down_force", "reason=lab"])
    for node in nodes:
        lab.watch.wait(f"{node} idle and off", lambda seen, node=node: is_off(seen.nodes.get(node)), 60)
