# The daemon is replaced by another program while clients come and go: nobody is turned away, nothing that was acknowledged is lost,
# and no client waits for long. What cannot take the daemon's place is refused, and the daemon goes on.
cases=$PWD
cd "$DIR"
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext "subjectAltName=DNS:localhost,IP:127.0.0.1" \
    -keyout key.pem -out cert.pem 2>/dev/null
(umask 077 && openssl rand -hex 32 >tokens)
port=$(free_port) nbd_port=$(free_port)
new_drives 4 128
start_daemon --http "127.0.0.1:$port" --http-tls-cert "$DIR/cert.pem" --http-tls-key "$DIR/key.pem" --http-token-file "$DIR/tokens"
pid=$DAEMON
p group create tank --level raid5 --drives "$(join "${DRIVES[@]}")" --yes >/dev/null
p volume create tank/v --size 64MiB >/dev/null
p export create tank/v --nbd "unix:$NBD" >/dev/null
p export create tank/v --nbd "127.0.0.1:$nbd_port" >/dev/null

COMERS=()
come() { # come NAME ARGUMENTS
    "$cases/comers.py" "${@:2}" >"$DIR/$1.came" 2>"$DIR/$1.said" &
    COMERS+=("$1:$!")
}
come unix nbd "$NBD" tank/v 0
come tcp nbd "$nbd_port" tank/v 1
come api-unix api "$SOCKET"
come api-tcp api "$port" "$DIR/cert.pem" "$DIR/tokens"
# A client that stays, and connects again by itself: to its guest an upgrade is a request that takes a little longer.
mkfifo asks
qemu-io --image-opts "driver=nbd,server.type=unix,server.path=$NBD,export=tank/v,reconnect-delay=60" <asks >qemu.said 2>&1 &
guest=$!
exec 8>asks
# Write N puts N % 255 + 1 into block N % 512, of 64 KiB; 64 are under way at the same time.
(
    count=0
    while [[ ! -e upgraded ]]; do
        for ((last = count + 64; count < last; count++)); do
            echo "aio_write -q -P $((count % 255 + 1)) $((32 * 1048576 + count % 512 * 65536)) 65536"
        done
        echo aio_flush
        sleep 0.01
    done
    echo "$count" >count
) >&8 &
asking=$!
sleep 1

# A program of another version: it says one, and is the same one.
printf '#!/bin/sh\n[ "$1" = --version ] && { echo purlind 9.8.7; exit; }\nexec %q "$@"\n' "$(command -v purlind)" >next
chmod 755 next
mode=$(stat -c '%a %u %i' "$SOCKET" "$NBD")
for program in '' next '' '' next; do
    p upgrade ${program:+--program "$program"} >said || fail "no upgrade: $(cat said)"
    grep -q '^upgraded purlind .* to .*; nobody was served for [0-9]* ms$' said || fail "unclear: $(cat said)"
    [[ $(json 'd["pid"]' status) == "$pid" ]] || fail "the process is another one"
    sleep 0.5
done
[[ $(stat -c '%a %u %i' "$SOCKET" "$NBD") == "$mode" ]] || fail "the sockets are others: $(stat -c '%a %u %i' "$SOCKET" "$NBD"), $mode before"
touch upgraded
wait "$asking"
read -r count <count
((count > 1024)) || fail "the guest wrote only $count times"
for ((n = count - 512; n < count; n += 13)); do
    echo "read -q -P $((n % 255 + 1)) $((32 * 1048576 + n % 512 * 65536)) 65536" >&8
done
echo quit >&8
exec 8>&-
wait "$guest" || fail "the guest's drive failed: $(tail -c 400 qemu.said)"
errors=$(grep -io '[a-z_]* failed: .*\|error.*' qemu.said | sort | uniq -c || true)
[[ -z $errors ]] || fail "the guest saw errors: $errors"
echo "measured: a guest wrote $count times on one drive meanwhile, without an error"
pause_us=$(curl -sS --unix-socket "$SOCKET" http://x/v1/upgrade | python3 -c 'import json,sys; d=json.load(sys.stdin); assert d["state"]=="done", d; print(d["pause_us"])')

# What is refused stops nothing: connections that are there stay.
nbdsh -u "nbd+unix:///tank/v?socket=$NBD" -c 'import os, time
h.pread(512, 0)
open("connected", "w").close()
while not os.path.exists("refused"): time.sleep(0.01)
h.pread(512, 0)' &
reader=$!
while [[ ! -e connected ]]; do sleep 0.05; done
printf '#!/bin/sh\necho something else\n' >other
printf 'no program' >broken
chmod 755 other broken
touch plain
refuses "purlin: cannot upgrade to $DIR/other: it is not purlind, and answers --version with \"something else\"" upgrade --program other
refuses "purlin: cannot upgrade to $DIR/plain: it is not executable" upgrade --program plain
refuses "purlin: cannot upgrade to $DIR/none: No such file or directory (os error 2)" upgrade --program none
p upgrade --program broken 2>said && fail "a text file was taken"
grep -q "^purlin: cannot upgrade to $DIR/broken: it cannot be executed: " said || fail "unclear: $(cat said)"
p upgrade --dry-run >/dev/null
touch refused
wait "$reader" || fail "a refused upgrade ended a connection"

# A program that is gone when it is to be executed: everything is started again.
printf '#!/bin/sh\necho purlind 9.8.7\nrm "$0"\n' >gone
chmod 755 gone
p upgrade --program gone 2>said && fail "the program was gone"
grep -q "^purlin: $DIR/gone cannot be executed: No such file .*; purlind .* goes on, after nobody was served for [0-9]* ms$" said ||
    fail "unclear: $(cat said)"
[[ $(json 'd["pid"]' status) == "$pid" ]] || fail "the process is another one"
p upgrade >/dev/null

slowest_ms=0
for comer in "${COMERS[@]}"; do
    name=${comer%:*}
    kill -TERM "${comer#*:}" 2>/dev/null || true
    wait "${comer#*:}" || fail "$name: $(cat "$name.said")"
    read -r came ended longest_ms <"$name.came"
    echo "measured: $name came $came times, lost $ended connections, waited $longest_ms ms at most"
    ((came > 20)) || fail "$name came too seldom to say anything"
    ((longest_ms > slowest_ms)) && slowest_ms=$longest_ms
done
echo "measured: the last upgrade but two took $((pause_us / 1000)) ms"
((pause_us < 1000000)) || fail "nobody was served for $pause_us us"
((slowest_ms < 10000)) || fail "a client waited $slowest_ms ms"

p group create m --level raid1 --drives mem:x:32MiB,mem:y:32MiB --yes >/dev/null
refuses 'purlin: the group "m" has drives in the memory of the daemon, which end with it: stop it first' upgrade

# Stopped in order, the sockets go with the daemon.
stop_daemon TERM
[[ ! -e $SOCKET && ! -e $NBD ]] || fail "sockets are left behind"
