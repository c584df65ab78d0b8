"""The lab's slurm.conf.

In:  a `Cluster` (paths, ports, groups) and Slurm's version. Out: the text of slurm.conf.
Never: reads or writes a file.

One `Group` is a launch recipe of ours and a partition of Slurm's at once. Every node has a port of its own: slurmd listens
on all addresses, and all stand-in instances share one host.
"""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Group:
    """One group of the configuration and one partition. `template` defaults to lab-NAME; `image` is what its instances run."""

    name: str
    count: int
    template: str = ""
    image: str = "good"  # "dark": its instances never boot
    resume_timeout: int = 0  # seconds; 0 = the cluster's
    template_exists: bool = True
    node_options: str = ""  # more of its NodeName line, as "Feature=spot Weight=10"
    options: str = ""  # more lines of its [[group]]

    @property
    def nodes(self):
        return [f"{self.name}-{number}" for number in range(1, self.count + 1)]

    @property
    def hostlist(self):
        return f"{self.name}-[1-{self.count}]"

    @property
    def launch_template(self):
        return self.template or f"lab-{self.name}"


@dataclass(frozen=True)
class Cluster:
    root: Path
    user: str
    munge_socket: Path
    slurmctld_port: int
    first_node_port: int
    groups: list
    resume_timeout: int = 300  # no boot takes as long, however slow the machine
    suspend_time: int = 4
    suspend_timeout: int = 3
    resume_fail: str = "slurm_resume_fail"  # ParallelCluster has slurm_suspend here
    extra: dict = field(default_factory=dict)


def render(cluster, version):
    """`version` is (major, minor), as (22, 5)."""
    root, programs = cluster.root, cluster.root / "programs"
    settings = {
        "ClusterName": "lab",
        "SlurmctldHost": "localhost(127.0.0.1)",
        "SlurmUser": cluster.user,
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={cluster.munge_socket}",
        "StateSaveLocation": root / "slurmctld",
        "SlurmdSpoolDir": root / "spool/%n",
        "SlurmctldPidFile": root / "run/slurmctld.pid",
        "SlurmdPidFile": root / "run/slurmd-%n.pid",
        "SlurmctldLogFile": root / "log/slurmctld.log",
        "SlurmdLogFile": root / "log/slurmd-%n.log",
        "SlurmctldPort": cluster.slurmctld_port,
        # No cgroups, no accounting, no MPI: none of them matters here and a container may have none.
        "ProctrackType": "proctrack/pgid",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "MpiDefault": "none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        # A node may claim more processors than this host has.
        "SlurmdParameters": "config_overrides",
        "ReturnToService": 2,
        "DebugFlags": "Power",
        # What must not end a job or an order only because a process had to wait for a processor; and jobs are asked for long after.
        "MessageTimeout": 30,
        "BatchStartTimeout": 120,
        "MinJobAge": 3600,
        # Scans every second, so that the lab is quick. Not cloud_reg_addrs: registrations come from 127.0.0.1 here.
        "SlurmctldParameters": "idle_on_node_suspend,power_save_interval=1,power_save_min_interval=0",
        "SchedulerParameters": "sched_interval=1,bf_interval=1,sched_min_interval=0",
        "ResumeProgram": programs / "slurm_resume",
        "SuspendProgram": programs / "slurm_suspend",
        "ResumeFailProgram": programs / cluster.resume_fail,
        "ResumeRate": 0,
        "SuspendRate": 0,
        "ResumeTimeout": cluster.resume_timeout,
        "SuspendTimeout": cluster.suspend_timeout,
        "SuspendTime": cluster.suspend_time,
    }
    if version < (23, 2):
        settings["PrivateData"] = "cloud"  # else nodes that are off are invisible
    if version < (23, 11):
        settings["TreeWidth"] = 65533
        settings["CommunicationParameters"] = "NoAddrCache"
    settings.update(cluster.extra)
    lines = [f"{key}={value}" for key, value in settings.items()]
    port = cluster.first_node_port
    for group in cluster.groups:
        lines.append(f"NodeName={group.hostlist} Port=[{port}-{port + group.count - 1}] CPUs=1 State=CLOUD {group.node_options}".rstrip())
        port += group.count
    # Groups of one name share a partition, and its timeout is that of the first.
    partitions = {}
    for group in cluster.groups:
        partitions.setdefault(group.name, []).append(group)
    for index, (name, groups) in enumerate(partitions.items()):
        timeout = f" ResumeTimeout={groups[0].resume_timeout}" if groups[0].resume_timeout else ""
        default = "YES" if index == 0 else "NO"
        nodes = ",".join(group.hostlist for group in groups)
        lines.append(f"PartitionName={name} Nodes={nodes} Default={default} State=UP{timeout}")
    return "\n".join(lines) + "\n"
