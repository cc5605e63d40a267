#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/packages/use.sh - the packages beside this file: installed, used, purged; run by debian.sh in a root of its own
. "$(dirname "$0")/lib.sh"
set +E

drive=/var/tmp/spillway-drive.img
truncate -s 256M $drive
useradd -m trainer
chown trainer $drive
as_trainer() {
    setpriv --reuid trainer --regid trainer --init-groups env HOME="$(getent passwd trainer | cut -d: -f6)" "$@"
}
quiet_apt() {
    apt-get -q -y --no-install-recommends -o Dpkg::Use-Pty=0 "$@"
}
apt-get update -q >/dev/null

begin "the packages install, with nothing but what they depend on"
expect_exit 0 quiet_apt install /debs/*.deb
expect_equal "$(basename -a /debs/*.deb | cut -d_ -f1 | sort | paste -s -d' ')" \
    "$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' '*spillway*' | sed -n 's/ installed//p' | sort | paste -s -d' ')"

begin "the command: as a user that is not root, with a file as drive"
expect_exit 0 as_trainer spillway format $drive
expect_exit 0 as_trainer spillway check $drive
expect_exit 0 as_trainer spillway bench --level=store --filename=$drive --rw=write --bs=1M --size=64M
expect_true "a manual page" test -s /usr/share/man/man1/spillway.1.gz

begin "bash completes the command"
expect_exit 0 quiet_apt install bash-completion
expect_exit 0 bash -c '. /usr/share/bash-completion/bash_completion; { _comp_load spillway || _completion_loader spillway; } 2>/dev/null; complete -p spillway'
expect_output "-F _spillway spillway"

begin "spillway run finds what it preloads"
expect_exit 0 as_trainer spillway run -- cat /proc/self/maps
expect_output /usr/lib/spillway/libspillway_malloc.so

begin "a C program is built as its manual page says, and keeps a store"
expect_exit 0 quiet_apt install gcc libc6-dev pkg-config
zcat -f /usr/share/man/man3/spillway.3.gz >/debs/spillway.3
bash /debs/extract-example.sh /debs/spillway.3 >/debs/example.c
read -r -a needed <<<"$(pkg-config --cflags --libs spillway)"
expect_exit 0 gcc /debs/example.c -o /debs/example "${needed[@]}"
expect_exit 0 as_trainer /debs/example $drive
expect_output identical

begin "fio takes the engine"
if dpkg-query -W spillway-fio >/dev/null 2>&1; then
    truncate -s 64M /var/tmp/volume.img
    chown trainer /var/tmp/volume.img
    engine=$(dpkg -L spillway-fio | grep 'libspillway_fio.so$')
    expect_exit 0 as_trainer fio --name=spill --filename=volume --ioengine="external:$engine" --spillway_devices=/var/tmp/volume.img --size=16M --bs=1M --rw=write
    expect_output "err= 0"
else
    skip "the source of fio was not to be had, so make deb left it out"
fi

begin "Python finds library and hooks"
expect_exit 0 as_trainer python3 -c '
import spillway
with spillway.Store(["'$drive'"]) as store:
    print("opened", spillway._core.library.path)'
expect_output "opened " libspillway.so

begin "a small model trains with the PyTorch of Debian"
expect_exit 0 quiet_apt install python3-torch
page=/var/tmp/spillway-run.html
expect_exit 0 as_trainer env OMP_NUM_THREADS=1 spillway run --report ${page%.html}.json -- python3 -c '
import torch, spillway, spillway.torch
torch.manual_seed(1)
layers = [layer for _ in range(4) for layer in (torch.nn.Linear(512, 512), torch.nn.GELU())]
model, batch = torch.nn.Sequential(*layers), torch.randn(512, 512)
model(batch).square().mean().backward()
expected = [p.grad.clone() for p in model.parameters()]
model.zero_grad()
with spillway.Store(["'$drive'"]) as store:
    off = spillway.torch.offload(model, store, mode="spill")
    with off:
        model(batch).square().mean().backward()
    spilled = off.stats().bytes_spilled
print("spilled", spilled, all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected)))
assert spilled > 0'
expect_output "True"

begin "the run left its figures, and they make a page"
expect_exit 0 as_trainer spillway report ${page%.html}.json
expect_output "$page"
expect_true "a page of the run" grep -q 'Training Sequential with spillway' "$page"
rm "$page" "${page%.html}.json"

begin "all is purged, and nothing stays"
mkdir -p /etc/udev/rules.d
echo '# granted' >/etc/udev/rules.d/70-spillway.rules
expect_exit 0 quiet_apt purge '*spillway*'
expect_equal "" "$(find / -xdev -iname '*spillway*' ! -path '/debs*' ! -path '/proc/*' ! -path $drive ! -path "$TEST_TMP*" \
    ! -path '/var/cache/*' ! -path '/src/*')" "files that stay"

begin "the wheel works in an empty virtual environment, with nothing else of spillway, and without a compiler"
expect_exit 0 quiet_apt install python3-venv
expect_exit 0 quiet_apt purge gcc
hash -r # of where gcc was
expect_exit 1 command -v gcc cc
expect_exit 0 python3 -m venv /opt/venv
expect_exit 0 /opt/venv/bin/pip install --no-index /debs/*.whl
expect_exit 0 as_trainer env PATH=/usr/bin:/bin /opt/venv/bin/python -c '
import spillway
spillway.format_store(["'$drive'"], force=True)
with spillway.Store(["'$drive'"]) as store:
    print("opened", spillway._core.library.path, store.description)
print(*sorted({line.split()[-1] for line in open("/proc/self/maps") if "liburing" in line or "hooks" in line}))'
expect_output "site-packages/spillway/libspillway.so" "site-packages/spillway/liburing.so.2"

begin "the wheel's command: formats, checks, preloads, and makes pages by the Python that it is in"
expect_exit 0 as_trainer env PATH=/usr/bin:/bin /opt/venv/bin/spillway format --force $drive
expect_exit 0 as_trainer env PATH=/usr/bin:/bin /opt/venv/bin/spillway check $drive
expect_exit 0 as_trainer env PATH=/usr/bin:/bin /opt/venv/bin/spillway run -- cat /proc/self/maps
expect_output site-packages/spillway/libspillway_malloc.so
expect_exit 1 as_trainer env PATH=/usr/bin:/bin /opt/venv/bin/spillway report /dev/null --output /dev/null
expect_output "it is not a report of spillway in JSON"
