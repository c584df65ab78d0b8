"""How an instance learns its name: the shipped boot script, alone and on a real slurmctld.

What must hold: it picks the node that has its address and is up or on its way up; it never takes a node that is off (whose
old address Slurm may still show) or one of several; it gives up in time and says what it tried; instances in a real
cluster come up under the names the mapping gives them.
"""

import subprocess
import tempfile
from pathlib import Path

import processes
from lab import NODE_BOOT, PATH, Lab, LabError
from slurm_conf import Group
from standin import MARKER
from watch import is_up

UP = "State=IDLE+CLOUD+NOT_RESPONDING+POWERING_UP"
OFF = "State=IDLE+CLOUD+POWERED_DOWN"
ADDRESS = "10.0.0.5"

# (what, lines of `scontrol show nodes -o`, exit status, text that must be in the output)
CASES = [
    ("one node has the address", [f"NodeName=c5-1 NodeAddr=10.0.0.50 {UP}", f"NodeName=c5-2 NodeAddr={ADDRESS} {UP}"], 0, "slurmd -N c5-2 -D"),
    ("a node that is off keeps the address", [f"NodeName=old NodeAddr={ADDRESS} {OFF}", f"NodeName=new NodeAddr={ADDRESS} {UP}"], 0, "slurmd -N new -D"),
    ("powering up goes before up", [f"NodeName=a NodeAddr={ADDRESS} State=IDLE+CLOUD", f"NodeName=b NodeAddr={ADDRESS} {UP}"], 0, "slurmd -N b -D"),
    ("a restart of slurmd on a node that is up", [f"NodeName=a NodeAddr={ADDRESS} State=ALLOCATED+CLOUD"], 0, "slurmd -N a -D"),
    ("only a node that is off", [f"NodeName=old NodeAddr={ADDRESS} {OFF}"], 1, f"has NodeAddr of ({ADDRESS})"),
    ("two nodes powering up", [f"NodeName=a NodeAddr={ADDRESS} {UP}", f"NodeName=b NodeAddr={ADDRESS} {UP}"], 1, "several a b"),
    ("the address stands in a reason only", [f"NodeName=a NodeAddr=a {UP} Reason=moved to NodeAddr={ADDRESS} [root@now]"], 1, "no node that is up"),
    ("longer and shorter addresses", [f"NodeName=a NodeAddr=110.0.0.5 {UP}", f"NodeName=b NodeAddr=10.0.0.55 {UP}"], 1, "no node that is up"),
]


def check_alone():
    with tempfile.TemporaryDirectory(prefix="slurm-ec2-node-boot-") as folder:
        scontrol, slurmd = Path(folder) / "scontrol", Path(folder) / "slurmd"
        slurmd.write_text('#!/bin/sh\necho "slurmd $*"\n', encoding="utf-8")
        slurmd.chmod(0o755)

        def run(**settings):
            environment = {
                "PATH": PATH,
                "NODE_BOOT_ADDRESSES": ADDRESS,
                "NODE_BOOT_DEADLINE": "1",
                "NODE_BOOT_INTERVAL": "1",
                "NODE_BOOT_SCONTROL": str(scontrol),
                "NODE_BOOT_SLURMD": str(slurmd),
                **settings,
            }
            done = subprocess.run([NODE_BOOT], env=environment, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL, check=False)
            return done.returncode, done.stdout + done.stderr

        def expect(what, answer, status, text):
            if answer[0] != status or text not in answer[1]:
                raise LabError(f"node-boot, {what}: expected status {status} and {text!r}, got {answer[0]} and {answer[1]!r}")

        def nodes_are(lines):
            scontrol.write_text("#!/bin/sh\ncat <<'NODES'\n" + "\n".join(lines) + "\nNODES\n", encoding="utf-8")
            scontrol.chmod(0o755)

        for what, lines, status, text in CASES:
            nodes_are(lines)
            expect(what, run(), status, text)
        nodes_are(CASES[0][1])
        expect("several addresses of its own", run(NODE_BOOT_ADDRESSES=f"172.16.0.1 {ADDRESS}"), 0, "slurmd -N c5-2 -D")
        expect("options for slurmd", run(SLURMD_OPTIONS="-D -f /etc/x.conf"), 0, "slurmd -N c5-2 -D -f /etc/x.conf")
        expect("a setting that is no number", run(NODE_BOOT_DEADLINE="10m"), 2, "NODE_BOOT_DEADLINE=10m")
        expect("no slurmd", run(NODE_BOOT_SLURMD="/nonexistent/slurmd"), 2, "slurmd not found")
        # Nothing listens on port 1: metadata is given up at once and the interfaces' addresses remain, none of them a node's.
        expect("no metadata", run(NODE_BOOT_ADDRESSES="", NODE_BOOT_IMDS="http://127.0.0.1:1"), 1, "no name found")
        scontrol.write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
        expect("scontrol hangs", run(NODE_BOOT_COMMAND_TIMEOUT="1"), 1, "took more than 1 s")
        scontrol.write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n", encoding="utf-8")
        expect("scontrol fails", run(), 1, "Unable to contact slurm controller")


def scenario():
    check_alone()
    with Lab("node-boot", [Group("c5", 3)], suspend_time=3600) as lab:
        lab.power_up("c5-1", "c5-3")
        lab.watch.wait("c5-1 and c5-3 up", lambda seen: all(is_up(seen.nodes.get(node)) for node in ("c5-1", "c5-3")), 60)
        with lab.watch.changed:
            mapping = dict(lab.watch.mapping["nodes"])
        addresses = {}
        for node in ("c5-1", "c5-3"):
            instance = mapping.get(node, {}).get("instance_id")
            lab.expect(instance in lab.watch.instances, f"the mapping has no instance of EC2 for {node}: {mapping}")
            addresses[node] = lab.watch.instances[instance]["address"]
            lab.expect(lab.watch.nodes[node]["address"] == addresses[node], f"address of {node} is {lab.watch.nodes[node]['address']}, not {addresses[node]}")
            commands = []
            for pid in processes.with_marker(f"{MARKER}={instance}"):
                commands.append(Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0"))
            lab.expect(any(command[1:3] == ["-N", node] for command in commands), f"instance {instance} does not run slurmd -N {node} but {commands}")
        lab.power_down()
        lab.expect_clean()
        # Slurm 22.05 still shows the address of a node that is off. An instance that is given it again must not take that node.
        late = lab.command(
            ["sh", "-c", f"{NODE_BOOT} 2>&1; echo status $?"],
            env={"NODE_BOOT_ADDRESSES": addresses["c5-1"], "NODE_BOOT_DEADLINE": "1", "NODE_BOOT_INTERVAL": "1"},
        )
        lab.expect("status 1" in late and "no name found" in late, f"an instance took the name of a node that is off: {late}")
