# A service manager keeps the daemon's listening sockets while it is restarted, or dies: who comes in between waits and is served. What it
# gives back is used only where it is what its name says.
port=$(free_port)
new_drives 3 128
mkfifo "$DIR/orders"
touch "$DIR/log"
tests=$PWD
"$tests/service_manager.py" "$DIR/notify" "$DIR/log" -- purlind --state "$STATE" --socket "$SOCKET" <"$DIR/orders" 2>>"$DIR/daemon.log" &
DAEMON=$!
exec 9>"$DIR/orders"
order() { echo "$*" >&9; }
heard() { # heard COUNT LINE: until the manager has written a line that often
    local try
    for try in $(seq 400); do
        (($(grep -cxF "$2" "$DIR/log" || true) >= $1)) && return 0
        sleep 0.05
    done
    fail "the manager has not heard $2 (after try $try): $(cat "$DIR/log")"
}
stored() { # stored NAMES: what the manager has now
    local before
    before=$(grep -c '^store:' "$DIR/log" || true)
    order store
    until (($(grep -c '^store:' "$DIR/log" || true) > before)); do sleep 0.02; done
    [[ $(grep '^store:' "$DIR/log" | tail -n 1) == "store: $1" ]] ||
        fail "the manager has $(grep '^store:' "$DIR/log" | tail -n 1), not $1"
}
heard 1 READY=1
p group create tank --level raid5 --drives "$(join "${DRIVES[@]}")" --yes >/dev/null
p volume create tank/v --size 64MiB >/dev/null
p export create tank/v --nbd "unix:$NBD" >/dev/null
p export create tank/v --nbd "127.0.0.1:$port" >/dev/null
name=nbd-unix%3A${NBD//:/%3A}
stored "api nbd-127.0.0.1%3A$port $name"
mode=$(stat -c '%a %u %i' "$SOCKET" "$NBD")

declare -A COMERS
come() { # come NAME ARGUMENTS
    "$tests/comers.py" "${@:2}" >"$DIR/$1.came" 2>"$DIR/$1.said" &
    COMERS[$1]=$!
}
leave() { # leave NAME: it must have been served all the time
    local came ended longest_ms
    kill -TERM "${COMERS[$1]}" 2>/dev/null || true
    wait "${COMERS[$1]}" || fail "$1: $(cat "$DIR/$1.said")"
    read -r came ended longest_ms <"$DIR/$1.came"
    echo "measured: $1 came $came times, lost $ended connections, waited $longest_ms ms at most"
    ((came > 20)) || fail "$1 came too seldom to say anything"
}
come unix nbd "$NBD" tank/v 0
come tcp nbd "$port" tank/v 1
come api api "$SOCKET"
sleep 0.5
order restart 1
heard 1 "STOPPING=1"
heard 1 ended
# Nobody is there to accept now.
[[ $(nbdinfo --size "nbd+unix:///tank/v?socket=$NBD") == 67108864 ]] || fail "who came in between was not served"
heard 2 READY=1
order restart 0.2
heard 3 READY=1
p upgrade >/dev/null
heard 4 READY=1
grep -qE '^RELOADING=1 MONOTONIC_USEC=[0-9]+$' "$DIR/log" || fail "the upgrade was not announced"
# A killed daemon ends connections in the middle of an answer; a client of NBD comes again, one of the API has to ask anew.
leave api
order crash 0.5
heard 5 READY=1
sleep 0.5
leave unix
leave tcp
stored "api nbd-127.0.0.1%3A$port $name"
[[ $(stat -c '%a %u %i' "$SOCKET" "$NBD") == "$mode" ]] || fail "the sockets are others"

# Permissions that others were given are taken back.
chmod 666 "$NBD" "$SOCKET"
order restart 0
heard 6 READY=1
[[ $(stat -c '%a %u %i' "$SOCKET" "$NBD") == "$mode" ]] || fail "others may connect"

# A file that is not the one that was bound, a socket with the name of another, and one that nobody needs.
rm "$NBD"
python3 -c 'import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])' "$NBD"
order give nbd-127.0.0.1%3A1 0
order give nonsense 0
order restart 0
heard 7 READY=1
[[ $(nbdinfo --size "nbd+unix:///tank/v?socket=$NBD") == 67108864 ]] || fail "the socket was not bound anew"
[[ $(stat -c %a "$NBD") == 600 ]] || fail "others may connect"
stored "api nbd-127.0.0.1%3A$port $name"
p export delete tank-3 >/dev/null
stored "api $name"
order give "nbd-127.0.0.1%3A$port" 0
order restart 0
heard 8 READY=1
stored "api $name"
p export create tank/v --nbd "127.0.0.1:$port" >/dev/null
order give "nbd-127.0.0.1%3A$port" 0
[[ $(nbdinfo --size "nbd://127.0.0.1:$port/tank/v") == 67108864 ]] || fail "not served"
order restart 0
heard 9 READY=1
[[ $(nbdinfo --size "nbd://127.0.0.1:$port/tank/v") == 67108864 ]] || fail "another socket was taken for this one"
stored "api nbd-127.0.0.1%3A$port $name"
