"""What a hostile program tries first. Run it with `belljar run examples/hostile.py`; it says what happened, plainly."""

import ctypes
import os
import socket
import subprocess

libc = ctypes.CDLL(None, use_errno=True)
stopped = worked = 0


def attempt(what, action):
    """Runs one attack; an attack counts as stopped only when it raised or came back empty-handed."""
    global stopped, worked
    try:
        loot = action()
    except Exception as error:  # noqa: BLE001 - any failure of the attack is good news
        loot, reason = None, f"{type(error).__name__}: {error}"
    else:
        reason = "it came back empty-handed"
    if loot:
        worked += 1
        print(f"  GOT THROUGH  {what}: {str(loot)[:60]!r}")
    else:
        stopped += 1
        print(f"  stopped      {what}  ({reason[:70]})")


def system_call(number, *arguments):
    if libc.syscall(number, *arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return "the kernel agreed"


def connect(address, port):
    with socket.create_connection((address, port), timeout=2):
        return "connected"


def other_processes():
    mine = {"1", str(os.getpid()), str(os.getppid())}
    return [pid for pid in os.listdir("/proc") if pid.isdigit() and pid not in mine]


def secrets():
    marks = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
    return [name for name in os.environ if any(mark in name.upper() for mark in marks)]


def readable(*paths):
    return [path for path in paths if os.path.exists(os.path.expanduser(path)) and os.listdir(os.path.expanduser(path))]


print(f"I am uid {os.getuid()} on {socket.gethostname()}, and I will try to get out.")
attempt("read the host's password hashes", lambda: open("/etc/shadow").read().replace("*", "").count("$"))
attempt("find keys in the environment", secrets)
attempt("look for SSH and cloud keys", lambda: readable("/root/.ssh", "~/.ssh", "~/.aws", "/root/.aws", "/root/.config"))
attempt("see other processes of the machine", other_processes)
attempt("become root with setuid", lambda: os.setuid(0) or "root")
attempt("reach a server on the internet", lambda: connect("1.1.1.1", 443))
attempt("reach services on the host", lambda: connect("127.0.0.1", 22))
attempt("ask the cloud's metadata service", lambda: connect("169.254.169.254", 80))
attempt("resolve a name", lambda: socket.gethostbyname("example.com"))
attempt("write to the machine's programs", lambda: open("/usr/bin/python3", "ab") and "opened")
attempt("mount a file system", lambda: system_call(165, b"none", b"/mnt", b"tmpfs", 0, None))
attempt("make a new user namespace", lambda: system_call(272, 0x10000000))
attempt("trace another process", lambda: system_call(101, 16, 1, 0, 0))
attempt("load a kernel program (bpf)", lambda: system_call(321, 5, 0, 0))
attempt("open the kernel's memory", lambda: open("/proc/kcore", "rb").read(4))
attempt("steer the kernel (core_pattern)", lambda: open("/proc/sys/kernel/core_pattern", "w") and "opened")
attempt("inject keys into a terminal", lambda: system_call(16, 0, 0x5412, b"x"))
attempt("kill the sandbox's first process", lambda: os.kill(1, 9) or os.path.exists("/proc/1/nothing"))
print(f"{stopped} stopped, {worked} got through. And yet this is a machine to work on:")
print("  " + subprocess.run(["bash", "-c", "git --version; gcc --version | head -1"], capture_output=True, text=True).stdout.strip().replace("\n", "; "))
raise SystemExit(1 if worked else 0)
