# A group's drives are free as soon as it is stopped, also while a client of another group holds an idle connection: up to Linux 6.12 a
# ring lets go of its registered files in order, and of none while something begun before that waits.
# drives: 4096 4096 4096 4096
start_daemon
p group create one --level raid1 --drives "$(drives 1 2)" --yes >&2
p group create two --level raid1 --drives "$(drives 3 4)" --yes >&2
p volume create one/v --size 16MiB >&2
p export create one/v --nbd "unix:$NBD" >&2
nbd_attach one/v
p group stop two >&2
p group assemble "$(drive 3)" "$(drive 4)" >&2 && echo "stopped and assembled again"
p group stop two >&2
blkdiscard --offset 0 --length 4096 "$(drive 3)" && echo "free for other programs"
nbd_detach
