# SPDX-License-Identifier: Apache-2.0
"""What a user may write by mistake: each marked line is refused by the type checkers, and no other."""

import obmm


def mistakes(dev: obmm.Device, m: obmm.Mapping, region: obmm.ExportedRegion) -> None:
    dev.export_region(b"2MiB")  # wrong
    region.map("w")  # wrong
    m.load("<u8")  # wrong
    m.write(0)  # wrong
    m.read("0", 4)  # wrong
    obmm.Handle.unpack("text")  # wrong
    region.handle().tokenid = 3  # wrong
    dev.no_such_method()  # wrong
    print(obmm.no_such_name)  # wrong
