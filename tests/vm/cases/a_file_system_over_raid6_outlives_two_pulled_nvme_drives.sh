# RAID 6 over six NVMe drives, a volume exported by NBD, the kernel's NBD device and ext4 on it: while files are written two drives
# are pulled, and every file is there, then and after the volume was detached, checked and mounted again.
# drives: 4096 4096 4096 4096 4096 4096
start_daemon
p group create tank --level raid6 --drives "$(drives 1 6)" --yes >&2
p volume create tank/v --size 256MiB >&2
p export create tank/v --nbd "unix:$NBD" >&2
nbd_attach tank/v
make_fs ext4 /dev/nbd0
mkdir -p /mnt
mount -t ext4 /dev/nbd0 /mnt

# write_files FOLDER [FILE]: sixteen files of many sizes, and more until FILE is there; their sums stay in the guest's memory.
write_files() {
    local n=0
    mkdir "/mnt/$1"
    while ((n < 16)) || [[ ${2:-} && ! -e $2 ]]; do
        n=$((n + 1))
        head -c $((n % 17 * n * 2500)) /dev/urandom >"/mnt/$1/$n"
        sync "/mnt/$1/$n"
    done
    (cd /mnt && sha256sum "$1"/*) >>/run/sums
}
check_files() { (cd /mnt && sha256sum --check --quiet /run/sums) && echo "$1: every file is as it was written"; }

write_files healthy
write_files pulled /run/pulled &
writer=$!
host unplug 2
host unplug 5
touch /run/pulled
wait "$writer"
members() { json '[.members[].state] | sort | join(" ")' group show tank; }
two_are_gone() { [[ $(members) == "faulty faulty in_sync in_sync in_sync in_sync" ]]; }
wait_for 60 two_are_gone
p group show tank >&2
echo 3 >/proc/sys/vm/drop_caches
check_files "with two drives pulled"

umount /mnt
nbd_detach
nbd_attach tank/v
check_fs ext4 /dev/nbd0 >&2 && echo "e2fsck finds nothing wrong"
mount -t ext4 -o ro /dev/nbd0 /mnt
check_files "mounted again"
umount /mnt
nbd_detach
