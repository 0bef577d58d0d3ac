# SPDX-License-Identifier: Apache-2.0
"""Tests on a real kernel: guests under QEMU with the simulator module ``obmm_sim`` (``native/kmod``).

``make kernel-x86``, ``make kernel-arm64``
    One guest.  Runs, in this order, what lies in ``guest/``: ``kernel_rules`` (page tables, signals, the guard, fork, kill -9,
    revocation), ``borders_rules`` (what any opener may try against the kernel: vmsplice, futex, io_uring, unloading, umount,
    decoder changes, exhausted memory), ``smoke`` (the loopback smoke tests in C and in Python) and ``replay`` (the recorded cases of the driver
    that fit the module's commands, judged as on the emulator).
``make kernel-pair``
    Two guests around one shared memory (ivshmem) and one network: A runs ``obmm serve``, B ``obmm fetch`` and compares
    every byte; they play ping-pong through the fabric; A is killed, and B's next calls raise instead of hanging.
``make kernel-cases``
    The cases that emulator and module share, with both answers, from the consoles of the last guests.
``make kernel-ci``
    Both single guests at once, an aarch64 pair, the table.

How a run works (``__main__``): ``packages`` reads the current kernel version from the archive, downloads image, headers
and the guest's Python with apt and unpacks them; tools that the host lacks are installed, as root, or named.  ``build``
compiles the module, the extension, the smoke test and the replay's probe for the guest.  ``image`` packs an initramfs.
``machine`` boots it: no disk, no KVM (it opens on machines where a guest then hangs), no network but the pair's.  The
guest prints ``GUEST-RC=0`` as its last line, or it failed: QEMU's own status says nothing.  Every guest runs under
``timeout``, and any kernel warning is a panic; a console with ``BUG:``, ``Bad page``, ``leaked out``, ``Call Trace`` and
the like has failed, whatever its last line says.  All of it is kept in ``build/kernel``, by one run at a time, each part
made beside its place and renamed when it is whole; ``make clean`` removes it.

One part alone, or some cases: ``python -m tests.kernel arm64 --run 'kernel_rules,replay:own-*+m10*'``.

What the module does not do, and why a case may differ, is in docs/conformance/simulator.md.
"""
