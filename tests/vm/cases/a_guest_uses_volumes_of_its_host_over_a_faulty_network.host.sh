# On the machine that the VM runs on: a daemon whose NVMe/TCP target the guest uses. start gives its port, the subsystem's name, the host's
# secret and the target's.
p() { purlin --socket "$PWD/s" "$@"; }
daemon() {
    purlind --state "$PWD/state" --socket "$PWD/s" >>"$PWD/purlind.log" 2>&1 &
    echo $! >"$PWD/pid"
    local try
    for try in $(seq 600); do
        if p group list >/dev/null 2>&1; then return; fi
        sleep 0.1
    done
    echo "the daemon does not answer after $try tries: $(tail -n 3 "$PWD/purlind.log")" >&2
    exit 1
}
stop() {
    kill -s "$1" "$(<"$PWD/pid")"
    while kill -0 "$(<"$PWD/pid")" 2>/dev/null; do sleep 0.05; done
}
case $1 in
start)
    daemon
    p group create tank --level raid6 --strip 16KiB --create-files 192MiB --drives "$PWD/1,$PWD/2,$PWD/3,$PWD/4,$PWD/5" --yes >&2
    p volume create tank/ext4 --size 64MiB >&2
    p volume create tank/xfs --size 320MiB >&2
    p host key generate --out "$PWD/host.key" >&2
    p host key generate --hash sha512 --out "$PWD/ctrl.key" >&2
    p host key set "$2" tank --dhchap-secret "$PWD/host.key" --dhchap-ctrl-secret "$PWD/ctrl.key" --dh-group ffdhe2048 >&2
    # One that is free may be taken a moment later.
    for try in $(seq 20); do
        port=$((20000 + RANDOM % 12000))
        p export create tank/ext4 --nvme-tcp "127.0.0.1:$port" --host "$2" >&2 && break
        [[ $try != 20 ]] || exit 1
    done
    p export create tank/xfs --nvme-tcp "127.0.0.1:$port" --host "$2" >&2
    nqn=$(p export list --output json | python3 -c 'import json, sys; print(json.load(sys.stdin)["exports"][0]["nqn"])')
    echo "$port $nqn $(<"$PWD/host.key") $(<"$PWD/ctrl.key")"
    ;;
kill)
    stop KILL
    daemon
    ;;
fail-drives)
    p drive fail tank 1 --yes >&2
    p drive fail tank 3 --yes >&2
    ;;
grow)
    p volume resize tank/ext4 --size 96MiB >&2
    p volume create tank/new --size 32MiB >&2
    p export create tank/new --nvme-tcp "127.0.0.1:$3" --host "$2" >&2
    ;;
tls)
    purlin host key generate --tls --out "$PWD/tls.key" >&2
    p host key set "$2" tank --tls-key "$PWD/tls.key" >&2
    cat "$PWD/tls.key"
    ;;
end)
    [[ ! -e $PWD/pid ]] || stop TERM
    ;;
esac
