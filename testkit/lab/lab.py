"""A whole cluster on one machine: munge, moto's EC2, a real slurmctld with our three programs, stand-in instances.

In:  groups, and the folder with the programs. Out: a running cluster in a folder of its own; `with Lab(…) as lab`.
Never: touches the machine's own munge or Slurm, or any file outside its folder; leaves a process behind.
"""

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import processes
import slurm_conf
from capacity import Door
from cloud import ALIVE, Cloud
from standin import Metadata, StandIns
from watch import NotSeen, Watch, is_off

REPOSITORY = Path(__file__).resolve().parents[2]
RELEASE = REPOSITORY / "target/x86_64-unknown-linux-gnu/release"
SHIM = REPOSITORY / "target/lab/sysinfo_shim.so"
NODE_BOOT = REPOSITORY / "packaging/usr/libexec/slurm-ec2/node-boot"
PROGRAMS = ("slurm_resume", "slurm_suspend", "slurm_resume_fail")
DAEMONS = ("clustermgtd", "clusterstatusmgtd", "slurm-ec2")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class LabError(Exception):
    """The lab could not do what was asked, or the cluster is not as it must be."""


def free_ports(count):
    """The first of `count` free ports in a row, below those the kernel gives out by itself."""
    for _ in range(200):
        first = random.randint(20000, 31000)
        sockets = []
        try:
            for port in range(first, first + count):
                sockets.append(socket.socket())
                sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sockets[-1].bind(("0.0.0.0", port))
            return first
        except OSError:
            continue
        finally:
            for opened in sockets:
                opened.close()
    raise LabError(f"found no {count} free ports in a row between 20000 and 31000")


class Lab:
    """Options: `user` is SlurmUser, `launch` and `aws` are further lines of those sections of the configuration, `sections` are
    further sections, EC2 has no instances for `empty_templates`. Daemons are started by the scenario (`start_daemon`)."""

    def __init__(
        self,
        name,
        groups,
        user="root",
        show=False,
        boot_delay=lambda _instance: 1.0,
        launch="",
        aws="",
        sections="",
        empty_templates=(),
        **cluster,
    ):
        self.name, self.groups, self.user = name, groups, user
        self.launch, self.aws, self.sections, self.empty_templates = launch, aws, sections, empty_templates
        self.daemons = {}  # name → its process
        self.cluster_options = cluster
        self.show, self.boot_delay = show, boot_delay
        self.programs_dir = Path(os.environ.get("SLURM_EC2_BIN_DIR") or RELEASE)
        self.root = None
        self.node_boot = NODE_BOOT
        self.munged = self.slurmctld = self.cloud = self.door = self.metadata = self.stand_ins = self.watch = None

    # Start and end.

    def __enter__(self):
        self._require()
        self.root = Path(tempfile.mkdtemp(prefix=f"slurm-ec2-{self.name}-"))
        try:
            self._start()
        except BaseException:
            self._stop(failed=True)
            raise
        return self

    def __exit__(self, kind, error, _traceback):
        if error is not None:
            error.lab_root = self.root  # for whoever shows the logs
        self._stop(failed=kind is not None)

    def _require(self):
        if os.geteuid() != 0:
            raise LabError("the lab has to run as root: slurmctld and slurmd are started as on a real machine")
        missing = [str(path) for path in (*(self.programs_dir / name for name in PROGRAMS + DAEMONS), SHIM, NODE_BOOT) if not path.exists()]
        missing += [f"{name} (command)" for name in ("munged", "slurmctld", "slurmd", "scontrol") if not shutil.which(name, path=PATH)]
        if missing:
            raise LabError(f"missing: {', '.join(missing)}; `make demo` and `make test` install and build what is needed")

    def _start(self):
        root = self.root
        root.chmod(0o755)  # SlurmUser's programs come through here
        for folder in ("munge", "log", "run", "slurmctld", "spool", "programs", "state", "ec2-log", "jobs", "etc"):
            (root / folder).mkdir()
        for group in self.groups:
            for node in group.nodes:
                (root / "spool" / node).mkdir()
        owner = pwd.getpwnam(self.user)
        for folder in ("slurmctld", "programs", "state", "ec2-log", "log", "run"):
            os.chown(root / folder, owner.pw_uid, owner.pw_gid)
        (root / "state").chmod(0o750)

        nodes = sum(group.count for group in self.groups)
        first = free_ports(nodes + 4)
        self.conf = root / "etc/slurm.conf"
        self.env = {"PATH": PATH, "LC_ALL": "C", "SLURM_CONF": str(self.conf)}
        version = self.command(["slurmctld", "-V"]).split()[1].split(".")
        cluster = slurm_conf.Cluster(
            root, self.user, root / "munge/socket", first, first + 4, self.groups, **self.cluster_options
        )
        self.conf.write_text(slurm_conf.render(cluster, (int(version[0]), int(version[1]))), encoding="utf-8")
        if (int(version[0]), int(version[1])) >= (23, 11):
            (root / "etc/cgroup.conf").write_text("CgroupPlugin=disabled\n", encoding="utf-8")

        self._start_munge()
        self.cloud = Cloud(first + 1, root / "log/moto.log")
        self.cloud.start()
        self.door = Door(first + 3, self.cloud.endpoint, self.empty_templates)
        for group in self.groups:
            if group.template_exists:
                self.cloud.create_template(group.launch_template, group.image)
        self._write_programs(owner)
        self.watch = Watch(self, self.show)
        self.metadata = Metadata(first + 2)
        self.stand_ins = StandIns(
            self.cloud,
            self.metadata,
            {
                **self.env,
                "LD_PRELOAD": str(SHIM),
                "SLURMD_OPTIONS": f"-D -f {self.conf}",
                "NODE_BOOT_INTERVAL": "1",
                "NODE_BOOT_DEADLINE": "120",
            },
            self.node_boot,
            root / "log",
            self.watch.on_instance,
            self.boot_delay,
        )
        self.start_slurmctld()
        self.watch.start()
        self.stand_ins.start()
        self.watch.wait("all nodes powered down", lambda watch: len(watch.nodes) == nodes and all(map(is_off, watch.nodes.values())), 30)

    def _start_munge(self):
        folder = self.root / "munge"
        folder.chmod(0o755)
        key = folder / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        options = {"socket": "socket", "key-file": "key", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
        # --force: the folder's parents may be writable by others, as /tmp is; nobody else uses this munged.
        command = ["munged", "--foreground", "--force", *(f"--{option}={folder / name}" for option, name in options.items())]
        self.munged = processes.start(command, self.root / "log/munged.log", self.env)
        deadline = time.monotonic() + 240
        while not (folder / "socket").exists():
            if self.munged.poll() is not None or time.monotonic() > deadline:
                raise LabError(f"munged did not start; see {self.root}/log/munged.log")
            time.sleep(0.05)

    def _write_programs(self, owner):
        """Copies of the programs, where SlurmUser may go, and a wrapper for each: slurmctld passes no environment."""
        folder = self.root / "programs"
        (folder / "bin").mkdir()
        credentials, aws_config, config = (self.root / "etc" / name for name in ("credentials", "aws-config", "slurm-ec2.toml"))
        credentials.write_text("[default]\naws_access_key_id = lab\naws_secret_access_key = lab\n", encoding="utf-8")
        aws_config.write_text("[default]\n", encoding="utf-8")
        config.write_text(self._configuration(credentials, aws_config), encoding="utf-8")
        calls = folder / "calls.log"
        calls.touch()
        os.chown(calls, owner.pw_uid, owner.pw_gid)
        for name in DAEMONS:
            shutil.copy(self.programs_dir / name, folder / "bin" / name)
        for name in PROGRAMS:
            shutil.copy(self.programs_dir / name, folder / "bin" / name)
            wrapper = folder / name
            # No pipe, no substitution: slurmctld 22.05 starts it with descriptors 0 to 2 closed. `--` guards against a
            # name that looks like an option.
            wrapper.write_text(
                "#!/bin/sh\n"
                f'/bin/date "+%s.%N {name} $1" >>{calls}\n'
                f"export SLURM_EC2_CONFIG={config}\n"
                f'exec {folder}/bin/{name} "$@"\n',
                encoding="utf-8",
            )
            wrapper.chmod(0o755)

    def _configuration(self, credentials, aws_config):
        groups = "".join(
            f"""
[[group]]
name = "{group.name}"
nodes = "{group.hostlist}"
launch_template = "{group.launch_template}"
subnets = ["{self.cloud.subnet}"]
{group.options}"""
            for group in self.groups
        )
        return f"""cluster = "lab"
region = "eu-west-1"

[aws]
endpoint_url = "{self.door.endpoint if self.empty_templates else self.cloud.endpoint}"
credentials_file = "{credentials}"
config_file = "{aws_config}"
{self.aws}
[slurm]
bin_dir = "{Path(shutil.which("scontrol", path=PATH)).parent}"
conf = "{self.conf}"

[state]
dir = "{self.root}/state"

[log]
dir = "{self.root}/ec2-log"
level = "debug"

[launch]
# moto launches MinCount instances, whatever MaxCount says.
strategy = "all-or-nothing"
{self.launch}{self.sections}{groups}"""

    def _stop(self, failed):
        # Until the end nothing may interrupt the clean-up: a second Ctrl-C is for the impatient, not for the processes.
        handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            if self.cloud and self.cloud.process:
                self.cloud.process.send_signal(signal.SIGCONT)  # a scenario may have stopped it
            for part in (self.watch, self.stand_ins):
                if part:
                    part.stop()
            for server in (self.metadata, self.door):
                if server:
                    server.close()
            for process in (*self.daemons.values(), self.slurmctld, self.cloud and self.cloud.process, self.munged):
                processes.stop(process)
            processes.end_all()
            if self.watch:
                (self.root / "log/timeline.log").write_text("\n".join(self.watch.lines) + "\n", encoding="utf-8")
            if failed or os.environ.get("SLURM_EC2_LAB_KEEP"):
                print(f"logs are kept in {self.root} (log/: slurmctld, instances, timeline; ec2-log/: our programs)", file=sys.stderr)
            else:
                shutil.rmtree(self.root, ignore_errors=True)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    # slurmctld.

    def start_slurmctld(self):
        self.slurmctld = processes.start(["slurmctld", "-D", "-f", self.conf], self.root / "log/slurmctld.out", self.env, cwd=self.root / "log")
        deadline = time.monotonic() + 240
        while "is UP" not in self.command(["scontrol", "ping"], timeout=10, check=False):
            if self.slurmctld.poll() is not None or time.monotonic() > deadline:
                raise LabError(f"slurmctld did not start; see {self.root}/log/slurmctld.log and slurmctld.out")
            time.sleep(0.1)

    def slurmctld_runs(self):
        return self.slurmctld is not None and self.slurmctld.poll() is None

    def kill_slurmctld(self):
        """kill -9: nothing is saved, and programs it started live on."""
        self.slurmctld.kill()
        self.slurmctld.wait()
        self.watch.say("slurmctld killed with SIGKILL")

    # Daemons of ours.

    def start_daemon(self, name):
        """As systemd would, as SlurmUser; its stderr goes to log/NAME.out."""
        owner = pwd.getpwnam(self.user)
        environment = {**self.env, "SLURM_EC2_CONFIG": str(self.root / "etc/slurm-ec2.toml")}
        command = ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups", self.root / "programs/bin" / name]
        self.daemons[name] = processes.start(command, self.root / f"log/{name}.out", environment)
        self.watch.say(f"{name} started")

    def kill_daemon(self, name):
        """kill -9: nothing is finished."""
        self.daemons[name].kill()
        self.daemons[name].wait()
        self.watch.say(f"{name} killed with SIGKILL")

    def admin(self, *arguments, timeout=900, check=True):
        """`slurm-ec2 …` as SlurmUser; its stdout."""
        owner = pwd.getpwnam(self.user)
        user = ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"]
        environment = {"SLURM_EC2_CONFIG": str(self.root / "etc/slurm-ec2.toml")}
        return self.command([*user, self.root / "programs/bin/slurm-ec2", *arguments], timeout, check, environment)

    def command(self, arguments, timeout=300, check=True, env=None):
        """Runs a command in the cluster's environment; its stdout. Without `check` a failure gives ''."""
        try:
            done = subprocess.run(
                [str(argument) for argument in arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
                env={**self.env, **(env or {})},
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            if check:
                raise LabError(f"{' '.join(map(str, arguments))}: no answer in {timeout} s") from error
            return ""
        if done.returncode != 0:
            if check:
                raise LabError(f"{' '.join(map(str, arguments))}: exit status {done.returncode}: {done.stderr.strip()}")
            return ""
        return done.stdout

    def takes(self, *arguments):
        """Does slurmctld take it? For what it may refuse for a moment."""
        try:
            self.command(arguments)
        except LabError:
            return False
        return True

    def shown(self, *what):
        """`scontrol show …`, '' while slurmctld does not answer."""
        return self.command(["scontrol", "show", *what], check=False)

    def expand(self, hostlist):
        """Names of a host list made of this lab's nodes."""
        names = []
        for part in hostlist.replace("],", "]\n").splitlines():
            head, bracket, ranges = part.partition("[")
            if not bracket:
                names += part.split(",")
                continue
            *plain, prefix = head.split(",")
            names += plain
            for item in ranges.rstrip("]").split(","):
                low, _, high = item.partition("-")
                names += [f"{prefix}{number}" for number in range(int(low), int(high or low) + 1)]
        return names

    # What a user and an admin do.

    def submit(self, partition, nodes, script, *options):
        """sbatch; returns (job id, time of submission)."""
        at = time.time()
        output = self.command(
            ["sbatch", "--parsable", f"--partition={partition}", f"--nodes={nodes}", f"--chdir={self.root}/jobs", "--output=%j.out", *options, f"--wrap={script}"]
        )
        job = output.strip()
        self.watch.say(f"submitted job {job}: {nodes} node(s) in partition {partition}", at)
        return job, at

    def power_up(self, *nodes):
        self.watch.say(f"power-up of {','.join(nodes)} asked by hand")
        self.command(["scontrol", "update", f"nodename={','.join(nodes)}", "state=power_up"])

    def power_down(self):
        """Every node that is not off, as SuspendTime would: scenarios that look at nodes while they are up have a long one."""
        nodes = [name for name, node in self.watch.nodes.items() if not is_off(node)]
        self.watch.say(f"power-down of {','.join(nodes)} asked by hand")
        self.command(["scontrol", "update", f"nodename={','.join(nodes)}", "state=power_down"])

    def job_output(self, job):
        return (self.root / f"jobs/{job}.out").read_text(encoding="utf-8")

    # What must hold.

    def expect(self, truth, what):
        if not truth:
            raise LabError(f"wrong: {what}")

    def settles(self, problems, timeout=60):
        """`problems()` tells none any more: for what is written a moment before or after it can be seen elsewhere."""
        try:
            self.watch.wait("all as it must be", lambda _seen: not problems(), timeout)
        except NotSeen:
            found = problems()
            self.expect(not found, "; ".join(found))

    def expect_clean(self, timeout=60):
        """No instance alive, nothing in the mapping, every node ready for use, and nothing odd seen on the way."""
        client = self.cloud.client()
        self.watch.wait("no instance alive at EC2", lambda _seen: not self._alive(client), timeout)
        self.watch.wait("every node idle and powered down", lambda watch: all(map(is_off, watch.nodes.values())), timeout)
        self.watch.wait("an empty mapping", lambda watch: not watch.mapping["nodes"] and not watch.mapping["condemned"], timeout)
        oddities = self.watch.failures + self.stand_ins.failures
        self.expect(not oddities, "; ".join(oddities))

    def _alive(self, client):
        instances = self.cloud.instances(client)
        return [name for name, instance in instances.items() if instance["state"] in ALIVE]
