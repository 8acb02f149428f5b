"""Stories that other products' users told of their failures, as this one must live them. Each docstring has its number.

F01  test_sharing     another size waits and is told which size is in the way
F02  test_sharing     room is counted once for the card, however many functions offer it
F03  test_sharing     mixed sizes lie side by side, and a refused one leaves the other
F04  test_lifecycle   a guest that powers itself off
F05  test_lifecycle   a new place leaves nothing of the old one
F06  test_sharing     thirty starts in one second; tests/postgres/test_processes.py with processes of their own
F07  test_groups      a card's sound goes along; all functions of a board do, and the port above does not
F08  test_groups      a card in one group with the root disk is not given out
F09  test_groups      of two cards in one group one goes at a time; a card whose mate stays with the host
F10  test_lifecycle   a layout that a reboot took is made again before its VMs start
F11  test_lifecycle   a host without mediated devices is cut by the driver's own files
F12  test_groups      a dead card is quarantined, and its VM goes to another
F13  tests/e2e/test_story_debian.py (two clones are two machines), tests/hypervisor/test_generalise.py
F14  test_guests      a clone with an old name is a new instance for its new owner
F15  test_guests      warnings are no failure, and old images speak in words; tests/test_guest.py over SSH
F16  test_disks       an image that names files of the host is refused unopened
F17  test_lifecycle   a UEFI VM; on a real libvirtd: tests/hypervisor/test_kvm.py
F18  test_lifecycle   a domain whose lock is held for ever holds up no other
F21  test_guests      keys pasted without a last line break stay apart
F22  test_memory      memory is never promised twice; tests/hypervisor/test_start.py for starts that take too long
F23  test_lifecycle   a VM removed behind our back frees its card once
F24  test_sharing     one card is not promised to two wishes of one VM
F25  test_guests      the address is that of our own interface

F19 and F20 are of courses, which are not here yet.
"""
