#!/usr/bin/env python3
"""Times the optimizer's phase with all state on a drive, beside DeepSpeed's NVMe swappers on the same drive.

    python3 tools/dev/peers/bench_swapper_peers.py [--folder PATH] [--rounds N] [--setting JSON]... [--format text|json]

DeepSpeed runs as a real engine: ZeRO-3 on its CPU accelerator, one process, 48 bf16 layers of 2048 x 2048 (201.3 M
parameters), `offload_optimizer` to nvme, clipping at 1.0, AdamW by DeepSpeedCPUAdam. Only its optimizer's step is
timed: norm, swap in, update, swap out, bf16 weights. Ours is bench_optim, from the norm to the commit. First DeepSpeed
alone tries several I/O settings without and with pipelining, and the best of each is used; --setting gives them
instead. Then all take turns, one step each. Bytes are counted by the drive (/proc/diskstats), so nothing else should
use it: in the phase, and in the whole step, which writes gradients before the phase (and in ours reads weights).

It needs torch, deepspeed, the tools to compile deepspeed's asynchronous I/O at first use (libaio-dev, ninja, a C++
compiler), and build/tests/bench/bench_optim. It reports what cannot run; without any peer the exit status is 77.
"""
import argparse
import importlib.util
import json
import os
import resource
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
OURS = os.path.join(ROOT, "build/tests/bench/bench_optim")
LAYERS, WIDTH = 48, 2048
MI = 1 << 20
DEFAULT = {"pipeline": False, "sub_group": 8 * MI, "block_size": MI, "queue_depth": 8, "threads": 1, "single": False,
           "overlap": True}
TRIED_FIRST = [{}, {"queue_depth": 32}, {"queue_depth": 32, "threads": 2}, {"queue_depth": 32, "threads": 4},
               {"queue_depth": 128, "threads": 2}, {"queue_depth": 32, "threads": 2, "block_size": 8 * MI}]
TRIED_AROUND = [{"overlap": False}, {"single": True}, {"sub_group": 4 * MI}, {"sub_group": 32 * MI}]


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", default=os.path.join(ROOT, "build/bench"), help="folder on the drive, with 15 GB of free space")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--layers", type=int, default=LAYERS, help="layers of DeepSpeed's model")
    parser.add_argument("--setting", action="append", type=json.loads, default=[],
                        help=f"setting of DeepSpeed, as changes to {json.dumps(DEFAULT)}")
    parser.add_argument("--format", choices=["text", "json"], default="text")
    parser.add_argument("--peer", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args()


# ---- DeepSpeed, in its own process ---------------------------------------------------------------------


def deepspeed_config(options):
    setting = options.peer
    return {
        "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW",
                      "params": {"lr": 1e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
        "zero_optimization": {
            "stage": 3, "sub_group_size": setting["sub_group"], "reduce_bucket_size": 16 * MI,
            # Twelve buffers: four tensors read, four read ahead, three written behind, one spare.
            "offload_optimizer": {"device": "nvme", "nvme_path": options.folder, "buffer_count": 12,
                                  "pipeline_read": setting["pipeline"], "pipeline_write": setting["pipeline"]}},
        "aio": {"block_size": setting["block_size"], "queue_depth": setting["queue_depth"],
                "intra_op_parallelism": setting["threads"], "single_submit": setting["single"],
                "overlap_events": setting["overlap"]}}


def run_peer(options):
    """Answers like bench_optim --rounds stdin; sends DeepSpeed's own output to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.environ.update(DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(20000 + os.getpid() % 20000), OMP_NUM_THREADS=str(options.threads))
    import deepspeed
    import torch
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    deepspeed.init_distributed("gloo")
    config = deepspeed_config(options)
    with deepspeed.zero.Init(config_dict_or_path=config):
        layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(options.layers))

    class Model(torch.nn.Module):
        """Runs the layers in parallel, so that no gradient shrinks with depth."""

        def __init__(self):
            super().__init__()
            self.layers = layers

        def forward(self, inputs, weights):
            return sum((layer(inputs) * weights).sum() for layer in self.layers)

    engine = deepspeed.initialize(model=Model(), config=config)[0]
    inputs, weights = (torch.randn(1, WIDTH, dtype=torch.bfloat16) for _ in range(2))
    seconds = [0.0]
    step = engine.optimizer.step

    def timed_step(*args, **kwargs):
        begin = time.perf_counter()
        step(*args, **kwargs)
        seconds[0] = time.perf_counter() - begin

    engine.optimizer.step = timed_step

    def train_step():
        engine.backward(engine(inputs, weights))
        engine.step()

    train_step()
    train_step()
    print("ready", options.layers * WIDTH * WIDTH, file=answers, flush=True)
    for _ in sys.stdin:
        train_step()
        print(f"round {seconds[0]:.6f}", file=answers, flush=True)
    answers.flush()
    shutil.rmtree(options.folder, ignore_errors=True)
    os._exit(0)


# ---- peer processes --------------------------------------------------------------------------------------


def drive_bytes(folder):
    """Returns bytes read and written so far by the folder's block device; zeros if the kernel does not report them."""
    device = os.stat(folder).st_dev
    with open("/proc/diskstats", encoding="ascii") as file:
        for line in file:
            fields = line.split()
            if (int(fields[0]), int(fields[1])) == (os.major(device), os.minor(device)):
                return int(fields[5]) * 512, int(fields[9]) * 512
    return 0, 0


class Peer:
    def __init__(self, name, command, folder):
        self.name, self.folder = name, folder
        self.seconds, self.phase_bytes, self.step_bytes = [], [], []
        self.log = tempfile.TemporaryFile(dir=folder)
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log)
        self.params = int(self.answer("ready"))

    def answer(self, word):
        fields = self.process.stdout.readline().decode().split()
        if len(fields) != 2 or fields[0] != word:
            self.log.seek(0)
            tail = self.log.read().decode(errors="replace")[-1500:]
            raise RuntimeError(f"{self.name} ended with {self.process.wait()}: {tail}")
        return fields[1]

    def run(self):
        """Runs one step. The phase comes last, so samples tell the drive's bytes before its start."""
        samples = [(time.perf_counter(), drive_bytes(self.folder))]
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        while not select.select([self.process.stdout], [], [], 0.02)[0]:
            samples.append((time.perf_counter(), drive_bytes(self.folder)))
        end, total = time.perf_counter(), drive_bytes(self.folder)
        self.seconds.append(float(self.answer("round")))
        begin = end - self.seconds[-1]
        before = min(samples, key=lambda sample: abs(sample[0] - begin))[1]
        self.phase_bytes.append([total[i] - before[i] for i in (0, 1)])
        self.step_bytes.append([total[i] - samples[0][1][i] for i in (0, 1)])

    def rss_max(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            return next((int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM")), 0)

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.log.close()


def start_deepspeed(options, setting):
    setting = {**DEFAULT, **setting}
    folder = tempfile.mkdtemp(prefix="swap-", dir=options.folder)
    command = [sys.executable, os.path.abspath(__file__), "--folder", folder, "--peer", json.dumps(setting),
               "--threads", str(options.threads), "--layers", str(options.layers)]
    peer = Peer("DeepSpeed, pipelined" if setting["pipeline"] else "DeepSpeed, in order", command, folder)
    peer.setting = setting
    return peer


def time_setting(options, setting):
    """Returns the seconds of a setting: the median of three steps."""
    try:
        peer = start_deepspeed(options, setting)
    except RuntimeError as error:
        print(f"  {json.dumps(setting)}: {error}", file=sys.stderr)
        return float("inf")
    for _ in range(3):
        peer.run()
    peer.close()
    seconds = statistics.median(peer.seconds)
    print(f"  {json.dumps(setting)}: {seconds:.3f} s", file=sys.stderr, flush=True)
    return seconds


def best_setting(options, pipeline):
    settings = [{"pipeline": pipeline, **change} for change in TRIED_FIRST]
    times = [time_setting(options, setting) for setting in settings]
    best = settings[times.index(min(times))]
    for change in TRIED_AROUND:
        settings.append({**best, **change})
        times.append(time_setting(options, settings[-1]))
    return settings[times.index(min(times))] if min(times) < float("inf") else None


# ---- the report --------------------------------------------------------------------------------------------


def per_param(peer, samples):
    return [statistics.median(sample[i] for sample in samples) / peer.params for i in (0, 1)]


def report(options, peers):
    ours = peers[0]
    records = []
    for peer in peers:
        ratios = [theirs / peer.params / (own / ours.params) for theirs, own in zip(peer.seconds, ours.seconds)]
        phase, step = per_param(peer, peer.phase_bytes), per_param(peer, peer.step_bytes)
        records.append({"name": peer.name, "seconds": statistics.median(peer.seconds), "params": peer.params,
                        "ratio": statistics.median(ratios), "ratios": [min(ratios), max(ratios)],
                        "phase_bytes_per_param": phase, "step_bytes_per_param": step, "rss_max": peer.rss_max(),
                        "setting": getattr(peer, "setting", None)})
    if options.format == "json":
        print(json.dumps(records, indent=1))
        return
    for record in records:
        print(f"{record['name']}: {record['seconds']:.3f} s for {record['params'] * 1e-6:.1f} M parameters; relative to ours, "
              f"per parameter: {record['ratio']:.2f} ({record['ratios'][0]:.2f} to {record['ratios'][1]:.2f})")
        print("  bytes per parameter: phase read {:.2f}, written {:.2f}; ".format(*record["phase_bytes_per_param"]) +
              "step read {:.2f}, written {:.2f}; ".format(*record["step_bytes_per_param"]) +
              f"resident {record['rss_max'] / MI:.0f} MiB")
        if record["setting"]:
            print(f"  {json.dumps(record['setting'])}")


def main():
    options = parse()
    if options.peer:
        return run_peer(options)
    for variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(variable, None)
    if not os.path.exists(OURS):
        print(f"{OURS} is missing; run make build/tests/bench/bench_optim", file=sys.stderr)
        return 2
    if not all(importlib.util.find_spec(name) for name in ("torch", "deepspeed")):
        print("skipped: torch and deepspeed are not installed", file=sys.stderr)
        return 77
    # Exit in order on SIGTERM, so that nothing stays on the drive.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    # DeepSpeed locks its buffers in memory.
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit[1], limit[1]))
    os.makedirs(options.folder, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="peers-", dir=options.folder) as options.folder:
        settings = options.setting
        for pipeline in (False, True) if not settings else ():
            print("DeepSpeed alone, " + ("pipelined:" if pipeline else "in order:"), file=sys.stderr)
            settings = settings + [best for best in [best_setting(options, pipeline)] if best]
        if not settings:
            print("skipped: DeepSpeed does not run here", file=sys.stderr)
            return 77
        folder = tempfile.mkdtemp(prefix="ours-", dir=options.folder)
        peers = [Peer("ours", [OURS, "--rounds", "stdin", "--folder", folder], folder)]
        peers += [start_deepspeed(options, setting) for setting in settings]
        for i in range(options.rounds):
            for peer in peers:
                peer.run()
            print(f"round {i + 1}: " + ", ".join(f"{peer.name} {peer.seconds[-1]:.3f} s" for peer in peers),
                  file=sys.stderr, flush=True)
        report(options, peers)
        for peer in peers:
            peer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
