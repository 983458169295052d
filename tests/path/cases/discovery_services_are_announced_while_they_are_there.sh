# Discovery services are announced by multicast DNS where and while they listen, if asked: as a peer with another implementation
# (python3-zeroconf) on another machine sees it, and as `purlin nvme discover --mdns` lists it.
tests=$PWD
if new_network daemon && new_network peer &&
    ip -n "$daemon" link add veth0 type veth peer name veth0 netns "$peer" 2>/dev/null; then
    for side in "$daemon 10.99.0.1" "$peer 10.99.0.2"; do
        read -r network own <<<"$side"
        ip -n "$network" link set lo up
        ip -n "$network" address add "$own/24" dev veth0
        ip -n "$network" link set veth0 up
        # Nothing else is reached from there.
        ip -n "$network" route add 224.0.0.0/4 dev veth0
    done
    WITHIN=(ip netns exec "$daemon")
    within_peer=(ip netns exec "$peer")
    interface=veth0 address=10.99.0.1 peer_address=10.99.0.2
else
    echo "skipped: two machines, since network namespaces cannot be made here; over the loopback interface instead"
    within_peer=()
    interface=lo address=127.0.0.1 peer_address=127.0.0.1
fi
port=$(free_port)
other=$((port + 1))

seen=$DIR/seen
touch "$seen"
"${within_peer[@]}" "$tests/mdns_peer.py" "$peer_address" >"$seen" 2>"$DIR/peer.log" &
HELPERS+=($!)
# sees COUNT PATTERN: until the peer has said that so often.
sees() {
    local try
    for try in $(seq 600); do
        (($(grep -cE "^$2\$" "$seen" || true) >= $1)) && return 0
        sleep 0.1
    done
    fail "the peer does not see '$2' (after try $try): $(cat "$seen" "$DIR/peer.log")"
}
# saw COUNT PATTERN: so often in all.
saw() { (($(grep -cE "^$2\$" "$seen" || true) == $1)) || fail "the peer has not seen '$2' $1 times: $(cat "$seen")"; }
sees 1 listens

# Not asked, it has nothing to do with multicast DNS.
new_drives 3 96 4096
start_daemon
p group create tank --level raid5 --drives "$(join "${DRIVES[@]}")" --yes
p volume create tank/a --size 16MiB
p volume create tank/b --size 16MiB
p export create tank/a --nvme-tcp "$address:$port" --allow-any-host
[[ -z $("${WITHIN[@]}" ss -Hlunp 'sport = :5353' | grep "pid=$DAEMON,") ]] || fail "it answers mDNS though nobody asked for it"
stop_daemon TERM

start_daemon --mdns "$interface"
name="purlin-[a-z0-9-]*-${address//./-}-$port"
text="nqn=nqn\.2014-08\.org\.nvmexpress\.discovery p=tcp"
sees 1 "\+ $name $address:$port $text"
[[ -n $("${WITHIN[@]}" ss -Hlunp 'sport = :5353' | grep "pid=$DAEMON,") ]] || fail "that it does not answer mDNS could not be seen before"

# purlin finds it, and what it finds can be asked.
lists() { # lists ADDRESS PORT: until it does; who is slow to answer is there the next time
    local try
    for try in $(seq 20); do
        "${within_peer[@]}" purlin nvme discover --mdns --seconds 2 --output json >"$DIR/list"
        python3 - "$DIR/list" "$1" "$2" <<'EOF' && return 0
import json, sys
services = json.load(open(sys.argv[1]))["services"]
sys.exit(not any(sys.argv[2] in s["addresses"] and s["port"] == int(sys.argv[3]) for s in services))
EOF
    done
    fail "not listed (after try $try): $(cat "$DIR/list")"
}
lists "$address" "$port"
"${within_peer[@]}" env XDG_CONFIG_HOME="$DIR" purlin nvme discover "$address:$port" | grep nqn.2014-08.org.nvmexpress:uuid: >/dev/null ||
    fail "what was found cannot be asked"

# The first export there brings it, the last one takes it away; an upgrade does neither.
p export create tank/b --nvme-tcp "$address:$port" --allow-any-host
mapfile -t exports < <(p export list -o json | python3 -c 'import json,sys; [print(e["id"]) for e in json.load(sys.stdin)["exports"]]')
p export delete "${exports[0]}"
p upgrade
# What is said later is heard later: a goodbye would have been heard by then.
p export create tank/b --nvme-tcp "$address:$((port + 2))" --allow-any-host
sees 1 "\+ purlin-[a-z0-9-]*-$((port + 2)) .*"
saw 0 "- .*"
p export delete "${exports[1]}"
sees 1 "- $name"
saw 1 "\+ $name .*"
saw 1 "- $name"

# At any address: with those of this interface, and no others. A stop takes it away.
p export create tank/a --nvme-tcp "0.0.0.0:$other" --allow-any-host
sees 1 "\+ purlin-[a-z0-9-]*-$other $address:$other $text"
stop_daemon TERM
sees 1 "- purlin-[a-z0-9-]*-$other"
[[ $interface == lo ]] || saw 0 ".*127\.0\.0\.1.*"
saw 0 "!.*"
