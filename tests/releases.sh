#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/releases.sh - root folders of Debian's releases, and work in them; sourced
#
# Who sources this sets: root, the sources; suite; folder, of the root folder; mirror, or empty: this machine's; fresh, or empty: take
# what is there. FOLDER.made says what is complete. To be called in a mount namespace of its own (unshare --mount --propagation private).

end_with_me=(setpriv --pdeathsig TERM) # a shell that is ended would leave what it waits for running

say() {
    printf '  %-5s %s\n' "$1" "$2"
}

need_releases() {
    local needed
    [ "$(id -u)" -eq 0 ] || die "needs root: for debootstrap, chroot and mounts"
    for needed in debootstrap unshare setpriv flock; do
        command -v "$needed" >/dev/null || die "$needed is missing: scripts/deps.sh releases installs it"
    done
}

# Where this machine has Debian's packages from.
find_mirror() {
    [ -z "$mirror" ] || return 0
    mirror=$(apt-get indextargets --format "\$(ORIGIN)|\$(LABEL)|\$(REPO_URI)" "Created-By: Packages" 2>/dev/null |
        sed -n 's/^Debian|Debian|//p' | head -n 1)
    [ -n "$mirror" ] || die "apt knows no archive of Debian: try apt-get update, or name one with --mirror"
}

# enter COMMAND...: in the root folder, with nothing of this environment but what programs need to know of the outside.
enter() {
    local name given=()
    for name in V SPW_SEED SPW_TEST_TIMEOUT CFLAGS http_proxy https_proxy no_proxy; do
        [ -z "${!name+x}" ] || given+=("$name=${!name}")
    done
    "${end_with_me[@]}" chroot "$folder" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        BUILD=/build SPW_BUILD=/build "${given[@]}" "$@"
}

# Devices and cgroups are this machine's; so are the locks by which runs of the tests agree about what the kernel has but once.
mount_all() {
    mkdir -p "$folder/run/lock" /run/lock
    mount -t proc proc "$folder/proc"
    mount --rbind /sys "$folder/sys"
    mount --rbind /dev "$folder/dev"
    mount --bind /run/lock "$folder/run/lock"
}

make_root() {
    if [ -n "$fresh" ] || [ ! -e "$folder.made" ]; then
        rm -rf --one-file-system "$folder" "$folder.made"
        say ROOT "$suite: debootstrap"
        debootstrap --variant=minbase "$suite" "$folder" "$mirror" >"$folder.log" 2>&1 || {
            tail -n 5 "$folder.log" >&2
            die "debootstrap could not make $folder"
        }
        echo base >"$folder.made"
    fi
    printf '#!/bin/sh\nexit 101\n' >"$folder/usr/sbin/policy-rc.d" # nothing that is installed is started
    chmod 755 "$folder/usr/sbin/policy-rc.d"
    cp -L /etc/resolv.conf /etc/hosts "$folder/etc/"
}

# What is in the sources, as /src.
copy_tree() {
    rm -rf "$folder/src"
    mkdir -p "$folder/build"
    "$root/scripts/copy-tree.sh" "$folder/src"
}
