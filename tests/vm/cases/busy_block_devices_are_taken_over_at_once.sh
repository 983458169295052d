# Block devices that are asked for more than they take at the same time, so that every slot of a queue has a request when the daemon is
# killed, replaced, or not replaced since the program is gone: the next one, or the same, serves them at once.
# quick: block devices whose daemon is killed or replaced
# drives: 4096 4096 4096 4096
# limit: 300
modprobe ublk_drv
start_daemon
p group create tank --level raid6 --drives "$(drives 1 4)" --yes >&2
loads=()
for volume in a b c; do
    p volume create "tank/$volume" --size 48MiB >&2
    p export create "tank/$volume" --ublk --depth 32 >&2
    fio --name="$volume" --filename="/dev/purlin/tank/$volume" --size=40m --ioengine=libaio --direct=1 --iodepth=100 --rw=randrw --bs=4k \
        --time_based --runtime=600 --verify=crc32c --verify_backlog=64 --verify_fatal=1 --randseed=3 --eta=never \
        --output="/run/fio.$volume" &
    loads+=("$!")
done

# served: all three devices answer.
served() {
    local number before moved
    for number in 0 1 2; do
        before=$(<"/sys/block/ublkb$number/stat")
        moved() { [[ $(<"/sys/block/ublkb$number/stat") != "$before" ]]; }
        wait_for 10 moved
    done
    for load in "${loads[@]}"; do kill -0 "$load" || { cat /run/fio.* >&2; fail "fio ended"; }; done
}
for round in 1 2 3; do
    sleep 1
    stop_daemon KILL
    began=$SECONDS
    start_daemon
    # Where nothing of a server waits for the kernel, that notices its end after 30 s.
    ((SECONDS - began < 20)) || fail "killed: nobody was served for $((SECONDS - began)) s"
    served
    # From 10 s on it is not said in milliseconds.
    said=$(p upgrade)
    [[ $said =~ ' ms'$ ]] || fail "$said"
    served
    printf '#!/bin/sh\necho purlind 9.8.7\nrm "$0"\n' >/run/gone
    chmod 755 /run/gone
    unsaid=$(p upgrade --program /run/gone 2>&1) && fail "round $round: the program was gone"
    [[ $unsaid =~ ' ms'$ ]] || fail "$unsaid"
    served
    echo "measured: $said; $unsaid" >&2
done
echo "served at once, whatever became of the daemon"
volumes=(a b c)
for index in "${!loads[@]}"; do fio_ends "${loads[index]}" "/run/fio.${volumes[index]}"; done
echo "fio verified everything"
dmesg | grep -iE 'ublkb.*(error|critical)' >&2 && fail "the kernel saw an error"
echo "the kernel saw no error"
