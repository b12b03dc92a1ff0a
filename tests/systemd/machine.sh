# A systemd as PID 1 of its own namespaces, for the tests. Run as `unshare --mount sh -c SCRIPT machine supervise`
# with MACHINE_SCRIPT (this text), MACHINE_NAME and MACHINE_BINARY in the environment.
#
# supervise  makes a control group, starts `enter`, and ends everything when standard input closes: also when the
#            test is killed, nothing outlives it. Exits with 77 where the kernel or a container refuses.
# enter      PID 1 already: prints its process id as seen from outside and joins the control group.
# boot       sets the file system up and becomes systemd.
#
# Nothing outside may change: PID 1 sees private /etc, /run, /tmp and /var, everything else read-only, and only the
# units put there, so that no service of the host's distribution runs. The network is shared, for loopback.
set -eu

supervise() {
    trap '' HUP INT TERM
    {
        mount -t tmpfs tmpfs /run &&
            mkdir /run/cgroup &&
            mount -t cgroup2 cgroup2 /run/cgroup &&
            mkdir "/run/cgroup/$MACHINE_NAME" &&
            unshare --pid --mount --cgroup --uts --ipc --fork true
    } || exit 77
    unshare --pid --mount --uts --ipc --fork --kill-child=KILL sh -c "$MACHINE_SCRIPT" machine enter </dev/null &
    read -r _ || :
    echo 1 >"/run/cgroup/$MACHINE_NAME/cgroup.kill"
    wait || :
    find "/run/cgroup/$MACHINE_NAME" -depth -type d -exec rmdir {} \;
}

enter() {
    # /proc is still the outer one, so this is the outer number.
    read -r pid _ </proc/self/stat
    echo 0 >"/run/cgroup/$MACHINE_NAME/cgroup.procs"
    echo "$pid"
    exec unshare --cgroup sh -c "$MACHINE_SCRIPT" machine boot
}

boot() {
    mount -t tmpfs tmpfs /usr/local/bin
    touch /usr/local/bin/warmgate
    mount --bind "$MACHINE_BINARY" /usr/local/bin/warmgate
    for directory in /run /tmp /var; do mount -t tmpfs -o mode=0755 tmpfs "$directory"; done
    chmod 1777 /tmp

    mkdir -p /run/etc/systemd/system /run/systemd/system
    for file in group hosts ld.so.cache nsswitch.conf passwd resolv.conf ssl; do
        if [ -e "/etc/$file" ]; then cp -a "/etc/$file" /run/etc/; fi
    done
    printf '[Journal]\nStorage=volatile\nReadKMsg=no\nAudit=no\nForwardToWall=no\nRateLimitBurst=0\n' \
        >/run/etc/systemd/journald.conf
    mount --bind /run/etc /etc

    mount -t proc proc /proc
    mount --bind /proc/sys /proc/sys
    mount -o remount,bind,ro /proc/sys
    mount -o remount,bind,ro /sys
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mount -o remount,bind,ro /
    # Shared within the machine, as everywhere under systemd; without it credentials do not reach a service.
    mount --make-rshared /

    cd /
    units=/usr/lib/systemd/system
    cp "$units"/*.target "$units/systemd-journald.service" "$units/systemd-journald.socket" /run/systemd/system/
    mkdir /run/systemd/system/sysinit.target.wants
    ln -s ../systemd-journald.service ../systemd-journald.socket /run/systemd/system/sysinit.target.wants/
    exec env -i container=other PATH=/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin \
        SYSTEMD_UNIT_PATH=/etc/systemd/system:/run/systemd/system SYSTEMD_GENERATOR_PATH=/run/no-generators \
        /usr/lib/systemd/systemd --system --unit=multi-user.target --show-status=no --log-target=journal
}

"$1"
