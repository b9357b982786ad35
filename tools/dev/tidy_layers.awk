# Prints every include that crosses the house in a way that the list below does not allow, every source in a folder
# that is no room of it, and headers that include each other in a cycle; with check=edges instead, what a room of the
# sources may include and does not.
#
# One line per room: its folder, and what it may include besides its own headers: rooms, and single headers of rooms
# (a path that ends in .h). A line names only rooms that stand above it. Single headers may lie below: base/prng and
# base include each other in this way, and kernels and kernels/cpu.
BEGIN {
    room("base/prng", "base/assert.h base/bytes.h base/isa.h base/planes.h")
    room("base", "base/prng")
    room("base/hash", "base")
    room("base/name", "")
    room("nvme", "base base/hash")
    room("cpu_optim", "base")
    room("kernels", "base kernels/cpu/cpu.h kernels/comm/nccl/nccl.h")
    room("kernels/cpu", "base base/prng kernels")
    room("kernels/cpu/moe", "base kernels/cpu")
    room("kernels/cuda", "base base/prng kernels")
    room("kernels/cuda/moe", "base kernels/cuda")
    room("kernels/cuda/optim", "base kernels/cuda")
    # Communication and offload move bytes and compute nothing: of kernels they need the device alone.
    room("kernels/comm", "base base/hash kernels/device.h kernels/comm/mpi/plugin.h" \
        " kernels/comm/nccl/nccl.h")
    room("kernels/comm/mpi", "base kernels/comm")
    room("kernels/comm/nccl", "base kernels kernels/cuda/cuda_device.h")
    room("offload/plan", "base nvme kernels/device.h")
    # The proof reads a plan as data and shares no code with the builder.
    room("offload/proof", "base offload/plan/plan.h")
    room("offload/sim", "base offload/plan")
    room("offload/search", "base base/hash base/prng offload/plan offload/proof offload/sim")
    room("offload/trace", "base base/hash offload/plan offload/sim")
    room("engine/jinja", "base")
    room("engine/text", "base base/name base/hash engine/jinja")
    room("engine/config", "base base/name")
    room("engine/family", "base kernels")
    room("engine/model", "base base/hash base/prng kernels offload/plan engine/family")
    room("engine/vocab", "base base/hash engine/text")
    room("engine/data", "base base/hash base/prng engine/text")
    room("engine/hf", "base base/name base/hash engine/config engine/family engine/model")
    # A step, from the lowest room: the rooms that run it, then engine/step, which holds them as one.
    room("engine/step/stream", "base cpu_optim nvme")
    room("engine/step/rank", "base nvme kernels/comm offload/plan offload/trace engine/model engine/step/engine.h" \
        " engine/step/order.h engine/step/tracing.h")
    room("engine/step/planes", "base base/hash engine/step/stream engine/step/rank")
    room("engine/step/link", "base base/hash cpu_optim engine/step/rank engine/step/planes")
    room("engine/step/pending", "base offload/proof engine/step/rank engine/step/planes engine/step/link")
    room("engine/step/update", "base cpu_optim kernels engine/step/rank engine/step/planes engine/step/pending")
    room("engine/step/executor", "base cpu_optim engine/step/rank engine/step/planes engine/step/link engine/step/pending" \
        " engine/step/update")
    room("engine/step", "base base/hash nvme cpu_optim kernels kernels/comm offload/plan offload/proof offload/search offload/sim" \
        " offload/trace engine/model engine/step/rank engine/step/planes engine/step/link engine/step/pending" \
        " engine/step/update engine/step/executor")
    room("engine/mesh", "base engine/step offload/sim")
    room("engine/measure", "base base/hash base/prng nvme cpu_optim kernels offload/sim engine/model" \
        " engine/step/update/ops_optim.h")
    room("engine/report", "base engine/step kernels/nvml.h")
    room("engine/checkpoint", "base base/hash engine/hf engine/step")
    room("engine/generate", "base base/prng kernels engine/model engine/hf")
    room("engine/run", "base base/hash nvme offload/sim offload/trace engine/text engine/config engine/data" \
        " engine/step engine/mesh engine/measure engine/report engine/checkpoint")
    room("tools/doctor", "base nvme cpu_optim kernels engine/config")
    room("tools/bench", "base base/prng nvme cpu_optim kernels kernels/comm offload/sim engine/config engine/step/update engine/measure" \
        " tools/doctor")
    room("tools/start", "base base/name kernels/comm engine/config engine/run")
    room("tools/trace", "base nvme offload/trace engine/report")
    room("tools/compare", "base engine/config engine/report tools/trace")
    room("tools/picture", "base engine/model offload/plan tools/trace")
    room("tools/command", "base base/name nvme offload/trace engine/text engine/vocab engine/config engine/hf engine/checkpoint" \
        " engine/data engine/generate engine/report engine/run tools/doctor tools/bench tools/start tools/trace" \
        " tools/compare tools/picture")
    room("tools/help", "base tools/command")
    room("tools/demo", "engine/data")
    product = known " "
    # A test may include whatever it tests, private headers too.
    room("tests/simt", product)
    room("tests/kit", product " tests/simt")
    count = split("comm device plan run store", parts, " ")
    for (i = 1; i <= count; i++)
        room("tests/kit/" parts[i], product " tests/simt tests/kit")
    kits = " tests/simt tests/kit tests/kit/comm tests/kit/device tests/kit/plan tests/kit/run tests/kit/store"
    count = split("bench conform coverage fault fuzz golden sys/adapters sys/command sys/preferences sys/processes sys/saving sys/text sys/train", kinds, " ")
    for (i = 1; i <= count; i++)
        room("tests/" kinds[i], product kits)
    # tests/unit mirrors the sources, room by room.
    count = split(product, rooms, " ")
    for (i = 1; i <= count; i++)
        room("tests/unit/" rooms[i], product kits)
}
function room(folder, list,    names, i, n) {
    n = split(list, names, " ")
    for (i = 1; i <= n; i++)
        if (names[i] !~ /\.h$/ && !(names[i] in may))
            print "tools/dev/tidy_layers.awk:1: " folder " names " names[i] ", which does not stand above it"
    may[folder] = " " folder " " list " "
    known = known " " folder
}
function folder_of(path) {
    sub(/\/[^\/]*$/, "", path)
    return path
}
function is_private(header) {
    return header ~ /(internal|_impl|builder)\.h$/
}
# Goes along includes from a header that is not visited yet; `way` has the headers from the first one to this.
function follow(header, way,    list, i, n) {
    visited[header] = 1
    n = split(includes[header], list, " ")
    for (i = 1; i <= n; i++) {
        if (index(way " " header " ", " " list[i] " "))
            print header ":1: includes " list[i] ", which includes it"
        else if (!(list[i] in visited))
            follow(list[i], way " " header)
    }
}
FNR == 1 {
    from = folder_of(FILENAME)
    there[from] = 1
    if (check != "edges" && !(from in may))
        print FILENAME ":1: the folder " from " is no room of tools/dev/tidy_layers.awk"
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
    included = $0
    sub(/^[^"]*"/, "", included)
    sub(/".*/, "", included)
    where = FILENAME ":" FNR ": "
    if (FILENAME ~ /\.(h|cuh)$/)
        includes[FILENAME] = includes[FILENAME] " " included
    used[from, included] = used[from, folder_of(included)] = 1
    if (check == "edges")
        next
    if (included !~ /\// || included ~ /\.\./) {
        print where "\"" included "\" is not written from the root"
        next
    }
    to = folder_of(included)
    if (!(from in may) || to == from || index(may[from], " " included " "))
        next
    if (index(may[from], " " to " ") == 0)
        print where from " may not include " (index(may[from], " " to "/") ? included : to)
    else if (is_private(included) && from !~ /^tests\//)
        print where included " is private to " to
}
END {
    if (check != "edges") {
        for (header in includes)
            if (!(header in visited))
                follow(header, "")
        exit
    }
    for (room_of in there) {
        count = index(product, " " room_of " ") ? split(may[room_of], names, " ") : 0
        for (i = 1; i <= count; i++)
            if (names[i] != room_of && !((room_of, names[i]) in used))
                print "tools/dev/tidy_layers.awk:1: " room_of " may include " names[i] ", and does not"
    }
}
