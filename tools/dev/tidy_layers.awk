# Prints every include that points up, sideways, or is not written from the root.
BEGIN {
    may["base"] = " base "
    may["nvme"] = " base nvme "
    may["cpu_optim"] = " base cpu_optim "
    may["kernels"] = " base kernels "
    may["offload"] = " base nvme kernels offload "
    may["engine"] = " base nvme cpu_optim kernels offload engine "
    may["tools"] = " base nvme cpu_optim kernels offload engine tools "
    may["tests"] = " base nvme cpu_optim kernels offload engine tools tests "
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
    included = $0
    sub(/^[^"]*"/, "", included)
    sub(/".*/, "", included)
    from = FILENAME
    sub(/\/.*/, "", from)
    to = included
    where = FILENAME ":" FNR ": "
    if (included !~ /\// || included ~ /\.\./) {
        print where "\"" included "\" is not written from the root"
        next
    }
    sub(/\/.*/, "", to)
    if (!(from in may))
        print where "the folder " from " has no place in the layers"
    else if (index(may[from], " " to " ") == 0)
        print where from " may not include " to
    else if (from == "offload" && to == "kernels" && included != "kernels/device.h")
        print where "offload moves bytes and computes nothing; of kernels it may include device.h alone"
}
