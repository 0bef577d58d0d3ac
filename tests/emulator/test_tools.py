# SPDX-License-Identifier: Apache-2.0
"""Ordinary tools on an emulated node answer as on a device; a tool that this machine lacks is named as the reason."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from obmm.emulator import Fabric
from obmm.emulator.program import check_program, environment

from .foreign import compile_program
from .node import Node
from .one_node import fabric

__all__ = ["fabric"]

ALLOCATORS = {"jemalloc": "libjemalloc.so.2", "mimalloc": "libmimalloc.so.2"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tools")


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"this machine has no {name}")
    return found


def run(fabric: Fabric, *command: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run to the end: a tool that waits for bytes of a device would not come back."""
    env = environment(fabric.device(), os.environ | {"LC_ALL": "C"} | more)
    return subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True, timeout=60)


def test_ls_shows_a_character_device(fabric: Fabric) -> None:
    done = run(fabric, tool("ls"), "-l", "/dev/obmm")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("crw------- 1 root root 10, 122 ")
    assert done.stdout.endswith(" /dev/obmm\n")


def test_stat_names_the_kind_and_numbers(fabric: Fabric) -> None:
    assert (
        run(fabric, tool("stat"), "-c", "%F %t:%T %a %s", "/dev/obmm").stdout == "character special file a:7a 600 0\n"
    )


@pytest.mark.parametrize(
    "command", ["od -c", "cat", "wc -c", "head -c 1", "tail -c 1", "cmp /dev/null", "grep x", "md5sum"]
)
def test_a_reader_is_told_einval_at_once(fabric: Fabric, command: str) -> None:
    name, *options = command.split()
    done = run(fabric, tool(name), *options, "/dev/obmm")
    assert done.returncode != 0
    assert "Invalid argument" in done.stderr


def test_cp_neither_copies_from_nor_to_a_device(fabric: Fabric, folder: Path) -> None:
    done = run(fabric, tool("cp"), "/dev/obmm", folder / "copy")
    assert (done.returncode, "Invalid argument" in done.stderr) == (1, True)
    (folder / "text").write_text("text")
    done = run(fabric, tool("cp"), folder / "text", "/dev/obmm")
    assert (done.returncode, "Invalid argument" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    "command", ["rm -f /dev/obmm", "mv /dev/obmm /tmp/moved", "mkdir /dev/obmm", "ln -s /tmp /dev/obmm"]
)
def test_names_of_the_node_stay(fabric: Fabric, command: str) -> None:
    name, *words = command.split()
    assert run(fabric, tool(name), *words).returncode == 1
    assert not os.path.lexists("/dev/obmm"), "this machine got a file of that name"
    assert stat.S_ISCHR(os.stat(fabric.root() / "dev").st_mode) is False
    assert (fabric.root() / "dev" / "obmm").exists()


def test_find_walks_the_nodes_folders(fabric: Fabric) -> None:
    found = run(fabric, tool("find"), "/dev", "-maxdepth", "1", "-name", "obmm*", "-type", "c").stdout.split()
    assert found == ["/dev/obmm"]
    found = run(fabric, tool("find"), "/sys/devices/obmm", "-name", "control").stdout.split()
    assert found == ["/sys/devices/obmm/power/control"]


def test_lsof_shows_the_device_and_no_socket(fabric: Fabric) -> None:
    lsof = tool("lsof")
    script = f"exec 7<>/dev/obmm; {lsof} -n -P -p $$ -a -d 7 -F nt"
    shown = run(fabric, "sh", "-c", script).stdout
    assert "n/dev/obmm" in shown
    assert "sock" not in shown
    assert "unix" not in shown


def test_strace_follows_a_program_on_the_node(fabric: Fabric) -> None:
    done = run(fabric, tool("strace"), "-f", "-e", "trace=%file", "ls", "-l", "/dev/obmm")
    if "ptrace" in done.stderr and "not permitted" in done.stderr:
        pytest.skip("this machine forbids ptrace")
    assert done.stdout.startswith("crw-------")


def test_gdb_reads_a_mapping_of_the_node(fabric: Fabric, folder: Path) -> None:
    source = folder / "held.c"
    program = compile_source(source, HELD, "-g")
    node = Node(fabric.device().removeprefix("emulator:").split("#")[0])
    mem_id = node.export().mem_id
    commands = ["-ex", "set breakpoint pending on", "-ex", "break stop_here", "-ex", "run", "-ex", "print text"]
    done = run(fabric, tool("gdb"), "-q", "-batch", "-nx", *commands, "--args", program, f"/dev/obmm_shmdev{mem_id}")
    node.unexport(mem_id)
    node.close()
    if "ptrace" in done.stderr and "not permitted" in done.stderr:
        pytest.skip("this machine forbids ptrace")
    assert 'remote memory"' in done.stdout, done.stdout + done.stderr


def test_python_and_perl(fabric: Fabric) -> None:
    code = (
        "import os, stat; s = os.stat('/dev/obmm'); print(stat.S_ISCHR(s.st_mode), os.path.realpath('/dev/./obmm'));"
        "f = open('/dev/obmm', 'r+b', 0); print(os.readlink(f'/proc/self/fd/{f.fileno()}'));"
        "f.read(1)"
    )
    done = run(fabric, tool("python3"), "-c", code)
    assert done.stdout.split() == ["True", "/dev/obmm", "/dev/obmm"]
    assert "Errno 22" in done.stderr
    script = "print -c '/dev/obmm' ? 'device ' : 'none '; open(my $f, '<', '/dev/obmm') or die; print defined(<$f>) ? 'line' : $!"
    assert run(fabric, tool("perl"), "-e", script).stdout == "device Invalid argument"


def test_a_rust_program(fabric: Fabric, folder: Path) -> None:
    (folder / "r.rs").write_text(RUST)
    built = subprocess.run(
        [tool("rustc"), "-o", folder / "r", folder / "r.rs"], capture_output=True, text=True, timeout=120
    )
    assert built.returncode == 0, built.stderr
    done = run(fabric, folder / "r")
    assert done.stdout.splitlines() == ["true 10", "Invalid argument (os error 22)", "1", "10:122", "Some(0)"], (
        done.stderr
    )


def library(name: str) -> Path:
    for place in (
        "/lib/x86_64-linux-gnu",
        "/usr/lib/x86_64-linux-gnu",
        "/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
    ):
        if (found := Path(place) / name).exists():
            return found
    pytest.skip(f"this machine has no {name}")


@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize("how", ["linked", "preloaded behind", "preloaded before"])
def test_a_program_on_another_allocator(fabric: Fabric, folder: Path, allocator: str, how: str) -> None:
    lib = library(ALLOCATORS[allocator])
    if how == "linked":
        program = compile_program("loopback", folder, "-Wl,--no-as-needed", str(lib))
        done = run(fabric, program)
    else:
        program = compile_program("loopback", folder)
        env = environment(fabric.device())
        order = [env["LD_PRELOAD"], str(lib)] if how == "preloaded behind" else [str(lib), env["LD_PRELOAD"]]
        env["LD_PRELOAD"] = ":".join(order)
        done = subprocess.run([program], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "loopback ok\n", "")


def test_an_allocator_that_maps_while_it_is_being_resolved(fabric: Fabric, folder: Path) -> None:
    """Every kind of it: malloc that opens, reads, maps and closes on its first call, before any constructor ran."""
    source = folder / "greedy.c"
    source.write_text(GREEDY)
    lib = folder / "libgreedy.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", lib, source], check=True, timeout=60)
    program = compile_program("loopback", folder)
    for order in ("{ours}:{lib}", "{lib}:{ours}"):
        env = environment(fabric.device())
        env["LD_PRELOAD"] = order.format(ours=env["LD_PRELOAD"], lib=lib)
        done = subprocess.run([program], env=env, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "loopback ok\n", "")


@pytest.mark.parametrize(
    "command",
    [
        "env stat -c %F /dev/obmm",
        "env -i /usr/bin/stat -c %F /dev/obmm",
        "env -u LD_PRELOAD -u OBMM_DEVICE stat -c %F /dev/obmm",
        "sh -c 'stat -c %F /dev/obmm'",
        "sh -c 'exec env -i /usr/bin/stat -c %F /dev/obmm'",
        'perl -e \'system({"stat"} "stat", "-c", "%F", "/dev/obmm")\'',
        'python3 -c \'import subprocess; subprocess.run(["/usr/bin/stat", "-c", "%F", "/dev/obmm"], env={})\'',
        "xargs -a /dev/null stat -c %F /dev/obmm",
    ],
)
def test_the_node_goes_along_however_a_program_is_started(fabric: Fabric, command: str) -> None:
    done = run(fabric, tool("sh"), "-c", command)
    assert (done.stdout, done.stderr) == ("character special file\n", "")


def test_a_program_that_asks_no_libc_is_named_when_another_one_starts_it(fabric: Fabric, folder: Path) -> None:
    program = compile_source(folder / "alone.c", "int main(void) { return 0; }\n", "-static")
    done = run(fabric, "sh", "-c", f"{program}; ls /dev/obmm")
    assert done.stdout == "/dev/obmm\n"
    assert f"{program} is statically linked" in done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "/usr/bin/env python3",
        "/usr/bin/env -S python3 -u",
        "/usr/bin/env -iS python3",
        "/usr/bin/env -u X Y=1 python3",
        "/bin/sh",
    ],
)
def test_a_script_is_judged_by_what_runs_it(folder: Path, line: str) -> None:
    script = folder / "script"
    script.write_text(f"#!{line}\n")
    check_program(script)


def compile_source(source: Path, text: str, *flags: str) -> Path:
    source.write_text(text)
    program = source.with_suffix("")
    done = subprocess.run(["gcc", "-O0", *flags, "-o", program, source], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return program


HELD = """
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
char *text;
void stop_here(void) { __asm__ volatile(""); }
int main(int argc, char **argv)
{
	int fd = open(argv[argc - 1], O_RDWR);

	text = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (text == MAP_FAILED)
		return 1;
	strcpy(text, "remote memory");
	stop_here();
	return 0;
}
"""

GREEDY = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
static char pool[64 << 20];
static size_t used;
static int started, starting;
static void start(void)
{
	struct stat st;
	char text[16];
	int fd;
	void *page;

	if (started || starting)
		return;
	starting = 1;
	fd = open("/proc/sys/vm/overcommit_memory", O_RDONLY | O_CLOEXEC);
	if (fd >= 0 && read(fd, text, sizeof(text)) >= 0)
		fstat(fd, &st);
	close(fd);
	readlink("/etc/malloc.conf", text, sizeof(text));
	access("/sys/devices/system/node/node1", R_OK);
	page = mmap(NULL, 1 << 21, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	madvise(page, 1 << 21, MADV_HUGEPAGE);
	mprotect(page, 4096, PROT_READ);
	page = mremap(page, 1 << 21, 1 << 20, 0);
	munmap(page, 1 << 20);
	started = 1;
	starting = 0;
}
void *malloc(size_t size)
{
	size_t *block;

	start();
	block = (size_t *)(pool + __atomic_fetch_add(&used, (size + 31) & ~15UL, __ATOMIC_RELAXED));
	*block = size;
	return block + 2;
}
void free(void *block) { (void)block; }
void *calloc(size_t count, size_t size) { return malloc(count * size); }
void *realloc(void *old, size_t size)
{
	void *block = malloc(size);

	return old ? memcpy(block, old, ((size_t *)old)[-2] < size ? ((size_t *)old)[-2] : size) : block;
}
"""

RUST = """
use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::process::Command;

fn main() {
    let found = fs::metadata("/dev/obmm").unwrap();
    println!("{} {}", found.file_type().is_char_device(), found.rdev() >> 8);
    let mut file = fs::File::open("/dev/obmm").unwrap();
    println!("{}", file.read(&mut [0u8; 4]).unwrap_err());
    println!("{}", fs::read_dir("/dev").unwrap().filter(|e| e.as_ref().unwrap().file_name() == "obmm").count());
    println!("{}", fs::read_to_string("/sys/class/misc/obmm/dev").unwrap().trim());
    let done = Command::new("test").args(["-c", "/dev/obmm"]).env_clear().env("PATH", "/usr/bin:/bin").status();
    println!("{:?}", done.unwrap().code());
}
"""
