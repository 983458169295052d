#!/usr/bin/env python3
"""The machine of a test in a VM: QEMU, its drives, and what the guest may ask of them.

The guest has three serial ports: its console, a line to this program, and what the test prints. On the second it asks,
one line each, and is answered `ok` or `error WHY` (`host` in guest/lib.sh):

    begin                           the script starts now
    unplug N                        drive N is removed, as by hand; answered when the guest has let go of it
    plug N                          drive N is put back, with what it had
    replace N                       an empty drive with another serial number takes the place of the unplugged drive N
    media-error N OFFSET BYTES      reads of these bytes of drive N fail, until ...
    heal N                          ... the drive can read everything again
    critical-warning N BITS         drive N says this in its SMART / Health log
    run WORDS                       the script beside the test, NAME.host.sh, is run out here with these words; `ok` and what it printed
    end STATUS                      the script has ended

Drives count from 1; drive N has the serial number PURLINN.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

SECTOR = 512  # blkdebug counts in these, whatever the drive's blocks are
# On a busy machine an emulated processor now and then loses its timer while the kernel starts, and waits for ever. A boot takes
# some ten seconds of a core; one that takes so much longer is begun again, so often.
BOOT_LIMIT_S = 100
TRIES_MAX = 3
# The same may happen when it powers off.
POWER_OFF_LIMIT_S = 30
# What runs beside the VM does a thing within this.
BESIDE_LIMIT_S = 100
# A kernel that was made to panic says within this what each of its tasks waits for.
LAST_WORDS_LIMIT_S = 30


class Refused(Exception):
    """QEMU or this program cannot do what the guest asked."""


class NotBooted(Exception):
    """The kernel did not come to the script: how."""


class NotWoken(Exception):
    """The emulation lost an interrupt: the task that a processor was told to wake, which it never did.

    A task is being woken for microseconds, until the interrupt is there with which one processor tells another. QEMU 7.2 was seen to lose one
    on a busy machine; a processor that has nothing else to do then never runs the task."""


class Qmp:
    """QEMU's machine protocol (docs/interop/qmp-spec): a command at a time, events kept until somebody waits for them."""

    def __init__(self, sock):
        self.lines = sock.makefile("rw", buffering=1)
        self.events = []
        json.loads(self.lines.readline())  # the greeting
        self.do("qmp_capabilities")

    def _next(self):
        line = self.lines.readline()
        if not line:
            raise EOFError("QEMU has ended")
        return json.loads(line)

    def do(self, command, **arguments):
        print(json.dumps({"execute": command, "arguments": arguments}), file=self.lines)
        while True:
            message = self._next()
            if "event" in message:
                self.events.append(message)
            elif "error" in message:
                raise Refused(f"{command}: {message['error']['desc']}")
            else:
                return message["return"]

    def wait(self, event, **data):
        while True:
            for message in self.events:
                if message["event"] == event and data.items() <= message.get("data", {}).items():
                    self.events.remove(message)
                    return
            self.events.append(self._next())


class Beside:
    """The script that runs out here what the guest asks for, in a folder of its own; and `end` when the VM has ended."""

    def __init__(self, folder, script):
        self.folder, self.script = folder, script

    def arguments(self):
        """A network: the guest has this machine's loopback at 10.0.2.2."""
        return ["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net"] if self.script else []

    def run(self, words):
        if not self.script:
            raise Refused("there is no script beside this test")
        with tempfile.TemporaryFile("w+") as said:
            # Its files, and no pipes: what it leaves running would hold them open.
            command = ["bash", "-euo", "pipefail", self.script, *words]
            try:
                ended = subprocess.run(
                    command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=said, stderr=sys.stdout, timeout=BESIDE_LIMIT_S
                )
            except subprocess.TimeoutExpired:
                raise Refused(f"{' '.join(words)} did not end within {BESIDE_LIMIT_S} s") from None
            said.seek(0)
            if ended.returncode:
                raise Refused(f"{' '.join(words)} ended with {ended.returncode}")
            return " ".join(said.read().split())

    def end(self):
        """Ends what it has left running."""
        try:
            if self.script:
                self.run(["end"])
        except Refused as why:
            print(f"what ran beside the VM did not end: {why}")


class Drives:
    """NVMe drives over sparse files, each behind a port of its own, so that it can be removed and put back.

    The nodes of drive N: the device `driveN` reads `formatN`, which reads `fileN`, or `badN`, which fails some reads, over `fileN`.
    """

    def __init__(self, folder, kinds, mib):
        self.folder, self.mib = folder, mib
        kinds = [kind.partition("+") for kind in kinds]
        blocks = self.blocks = [int(block) for block, _, _ in kinds]
        self.extras = [extra for _, _, extra in kinds]
        self.generation = [0] * len(blocks)  # how often the drive in this place was replaced by another
        self.bad = [[] for _ in blocks]  # sectors that cannot be read
        self.qmp = None

    def file(self, n):
        path = f"{self.folder}/drive-{n}-{self.generation[n - 1]}"
        with open(path, "ab") as made:
            made.truncate(self.mib << 20)
        return {"driver": "file", "node-name": f"file{n}", "filename": path, "discard": "unmap"}

    def format(self, n, over="file"):
        return {"driver": "raw", "node-name": f"format{n}", "file": f"{over}{n}", "discard": "unmap"}

    def device(self, n):
        generation = self.generation[n - 1]
        block = self.blocks[n - 1]
        return {
            "driver": "nvme", "id": f"drive{n}", "drive": f"format{n}", "bus": f"port{n}",
            "serial": f"PURLIN{n}" + (f"-{generation}" if generation else ""),
            "logical_block_size": block, "physical_block_size": block,
        }  # fmt: skip

    def arguments(self):
        for n in range(1, len(self.blocks) + 1):
            yield from ["-blockdev", json.dumps(self.file(n)), "-blockdev", json.dumps(self.format(n))]
            yield from ["-device", f"pcie-root-port,id=port{n},chassis={n},slot={n}"]
            yield from self.with_extra(n) if self.extras[n - 1] else ["-device", json.dumps(self.device(n))]

    def with_extra(self, n):
        """A drive whose namespace is a device of its own: with a second controller (`+paths`), 8 bytes of metadata for each block
        (`+metadata`), or these with protection information (`+protection`). Such a drive is not removed or put back."""
        extra, device = self.extras[n - 1], self.device(n)
        of_namespace = ["drive", "logical_block_size", "physical_block_size"]
        namespace = {"driver": "nvme-ns", "bus": f"drive{n}", "nsid": 1} | {key: device.pop(key) for key in of_namespace}
        namespace |= {"paths": {}, "metadata": {"ms": 8}, "protection": {"ms": 8, "pi": 1}}[extra]
        if extra == "paths":
            device["subsys"] = f"subsystem{n}"
            yield from ["-device", f"nvme-subsys,id={device['subsys']},nqn=purlin-{n}"]
        yield from ["-device", json.dumps(device)]
        if extra == "paths":
            yield from ["-device", f"pcie-root-port,id=second-port{n},chassis={100 + n},slot={100 + n}"]
            yield from ["-device", json.dumps(device | {"id": f"second{n}", "bus": f"second-port{n}"})]
        yield from ["-device", json.dumps(namespace)]

    def unplug(self, n):
        self.qmp.do("device_del", id=f"drive{n}")
        self.qmp.wait("DEVICE_DELETED", device=f"drive{n}")

    def plug(self, n):
        self.qmp.do("device_add", **self.device(n))

    def replace(self, n):
        self.heal(n)
        self.qmp.do("blockdev-del", **{"node-name": f"format{n}"})
        self.qmp.do("blockdev-del", **{"node-name": f"file{n}"})
        self.generation[n - 1] += 1
        self.qmp.do("blockdev-add", **self.file(n))
        self.qmp.do("blockdev-add", **self.format(n))
        self.plug(n)

    def media_error(self, n, offset, count):
        sectors = range(offset // SECTOR, -(-(offset + count) // SECTOR))
        bad = sorted({*self.bad[n - 1], *sectors})
        self.heal(n)
        # Event `none`: from the start and for good.
        errors = [{"event": "none", "iotype": "read", "sector": sector, "errno": 5} for sector in bad]
        self.qmp.do(
            "blockdev-add",
            **{"driver": "blkdebug", "node-name": f"bad{n}", "image": f"file{n}", "inject-error": errors},
        )
        self.qmp.do("blockdev-reopen", options=[self.format(n, over="bad")])
        self.bad[n - 1] = bad

    def heal(self, n):
        if self.bad[n - 1]:
            self.qmp.do("blockdev-reopen", options=[self.format(n)])
            self.qmp.do("blockdev-del", **{"node-name": f"bad{n}"})
            self.bad[n - 1] = []

    def critical_warning(self, n, bits):
        self.qmp.do("qom-set", path=f"/machine/peripheral/drive{n}", property="smart_critical_warning", value=bits)

    def ask(self, words):
        what = {"unplug": self.unplug, "plug": self.plug, "replace": self.replace, "heal": self.heal}
        what["media-error"] = self.media_error
        what["critical-warning"] = self.critical_warning
        try:
            verb, n, *rest = words[0], *map(int, words[1:])
            if not 1 <= n <= len(self.blocks):
                raise Refused(f"there is no drive {n}")
            what[verb](n, *rest)
        except (KeyError, ValueError, TypeError, IndexError):
            raise Refused(f"not understood: {' '.join(words)}") from None


def qemu(options, drives, beside, qmp_fd, host_fd):
    """QEMU's command line."""
    console = "stdio,id=console,signal=off" if options.shell else f"file,id=console,path={options.console}"
    command_line = ["rdinit=/init", "console=ttyS0", "quiet", "loglevel=4", "panic=-1", f"purlin.drives={len(drives.blocks)}"]
    # The kernel's tests of its ciphers and a key type that nothing here uses take seconds of the boot, and watchdogs take
    # emulation for a hung machine.
    command_line += ["cryptomgr.notests", "initcall_blacklist=crypto_kdf108_init,init_encrypted"]
    command_line += ["mitigations=off", "nowatchdog"]
    # A kernel that hangs is asked why by an NMI: it panics, and shows where each task is.
    command_line += ["unknown_nmi_panic", "panic_print=0x1"]
    return [
        "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
        # Emulated: a machine that builds this is often a VM itself. q35 has ports that drives can be pulled from.
        "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1536",
        "-kernel", options.kernel, "-initrd", options.initrd, "-append", " ".join(command_line),
        "-chardev", console, "-serial", "chardev:console",
        "-chardev", f"socket,id=host,fd={host_fd}", "-serial", "chardev:host",
        "-chardev", f"file,id=output,path={options.output}", "-serial", "chardev:output",
        "-chardev", f"socket,id=qmp,fd={qmp_fd}", "-mon", "chardev=qmp,mode=control",
        *drives.arguments(), *beside.arguments(),
    ]  # fmt: skip


def core_seconds(process):
    """How long a process has had a core, as proc(5) has it."""
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def serve(host, drives, beside, options, machine, started):
    """Answers the guest until its script has ended; the status of that. None: it never ended, or not in time."""
    pending = b""
    begun = options.shell
    deadline = None if options.shell else started + BOOT_LIMIT_S
    while True:
        while b"\n" not in pending:
            host.settimeout(None if deadline is None else max(0.01, deadline - time.monotonic()))
            try:
                more = host.recv(4096)
            except TimeoutError:
                if not begun:
                    raise NotBooted(f"hung for {BOOT_LIMIT_S} s") from None
                print(f"the test did not end within {options.limit} s")
                return None
            if not more:
                if not begun:
                    raise NotBooted("ended")
                print("the VM ended before the test")
                return None
            pending += more
        line, pending = pending.split(b"\n", 1)
        words = line.decode(errors="replace").split()
        answer = "ok"
        if words[:1] == ["begin"]:
            now = time.monotonic()
            taken, deadline, begun = now - started, now + options.limit, True
            print(f"measured: boot to script {taken:.1f} s, {core_seconds(machine):.1f} s of a core")
        elif words[:1] == ["end"]:
            host.sendall(b"ok\n")
            return int(words[1])
        else:
            try:
                drives.qmp.events.clear()
                if words[:1] == ["run"]:
                    answer = f"ok {beside.run(words[1:])}".rstrip()
                else:
                    drives.ask(words)
            except Refused as why:
                answer = f"error {why}"
        host.sendall(answer.encode() + b"\n")


def last_words(machine, qmp):
    """Has a kernel that hangs panic, and so tell the console where each of its tasks is."""
    try:
        qmp.do("inject-nmi")
        machine.wait(LAST_WORDS_LIMIT_S)
    except (subprocess.TimeoutExpired, Refused, EOFError, OSError):
        pass  # it has said what it could


def keep(console, name):
    """Keeps what the console said, beside it."""
    if os.path.isfile(console):
        shutil.copyfile(console, f"{console}.{name}")


def panic(console):
    """Why the kernel ended, as its console has it."""
    lines = pathlib.Path(console).read_text(errors="replace").splitlines() if os.path.isfile(console) else []
    return next((line.strip() for line in lines if "Kernel panic" in line), "its console does not say why")


def being_woken(console):
    """A task that is being woken, in what a kernel said of its tasks; None if there is none.

    It is neither asleep nor, as the kernel says of each that it has put into a queue, a running task."""
    said = pathlib.Path(console).read_text(errors="replace") if os.path.isfile(console) else ""
    found = re.search(r"task:(.{15}) state:R +stack:", said)
    return found and found[1].strip()


def power_off(machine, qmp, console):
    """Waits until the VM has powered off, which it does by itself.

    The script has ended then, and its status is known: a kernel that hangs in its own shutdown is nobody's failure here."""
    try:
        machine.wait(POWER_OFF_LIMIT_S)
    except subprocess.TimeoutExpired:
        print(f"measured: the kernel did not power off within {POWER_OFF_LIMIT_S} s, and was ended; where it hung: {console}.off")
        last_words(machine, qmp)
        keep(console, "off")


def boot(options):
    """Starts the VM, with new drives, and serves it to its end. Returns the script's status; 125 if that is not known.

    Raises NotBooted if it does not come to the script, and NotWoken if that is why the script does not end."""
    with tempfile.TemporaryDirectory(prefix="purlin-vm.", dir=os.environ.get("TMPDIR", "/dev/shm")) as folder:
        drives = Drives(pathlib.Path(folder), options.drives.split(), options.mib)
        beside = Beside(folder, options.beside)
        qmp, qmp_theirs = socket.socketpair()
        host, host_theirs = socket.socketpair()
        started = time.monotonic()
        machine = subprocess.Popen(
            qemu(options, drives, beside, qmp_theirs.fileno(), host_theirs.fileno()),
            pass_fds=[qmp_theirs.fileno(), host_theirs.fileno()],
            stdin=None if options.shell else subprocess.DEVNULL,
            stderr=sys.stdout,
        )
        # QEMU's ends are its own: this program sees it ending.
        qmp_theirs.close()
        host_theirs.close()
        try:
            qmp.settimeout(60)
            drives.qmp = Qmp(qmp)
            status = serve(host, drives, beside, options, machine, started)
            if status is None:
                # A program that hangs may wait for the kernel.
                last_words(machine, drives.qmp)
                if task := being_woken(options.console):
                    raise NotWoken(task)
            else:
                power_off(machine, drives.qmp, options.console)
        except NotBooted:
            last_words(machine, drives.qmp)
            raise
        except (EOFError, OSError, ValueError) as why:
            print(f"the VM does not do what it should: {why}")
            status = None
        finally:
            machine.kill()
            machine.wait()
            beside.end()
    return 125 if status is None else status


def main():
    parser = argparse.ArgumentParser(description="Boots a VM and serves its script. Exit status: that of the script.")
    parser.add_argument("--kernel", required=True)
    parser.add_argument("--initrd", required=True)
    parser.add_argument("--drives", default="", help="block sizes in bytes, one for each drive, and what it has besides: see Drives.with_extra")
    parser.add_argument("--mib", type=int, default=128, help="size of each drive")
    parser.add_argument("--limit", type=int, default=300, help="seconds for the script")
    parser.add_argument("--console", default="/dev/null", help="file for what the guest's console says")
    parser.add_argument("--output", default="/dev/null", help="file for what the script prints")
    parser.add_argument("--beside", help="script for what runs out here for the test, with a network to it")
    parser.add_argument("--shell", action="store_true", help="the console is this terminal, without limit")
    options = parser.parse_args()
    # Whoever ends this program ends the VM with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(125))

    for _ in range(TRIES_MAX):
        try:
            return boot(options)
        except NotBooted as how:
            print(f"measured: the kernel {how} before the script, and was started again; {panic(options.console)}")
            keep(options.console, "hung")
        except NotWoken as task:
            print(f"measured: the test was begun again, since the emulation lost an interrupt: it never woke {task}")
            keep(options.console, "hung")
    print("the VM does not work")
    return 125


if __name__ == "__main__":
    sys.exit(main())
