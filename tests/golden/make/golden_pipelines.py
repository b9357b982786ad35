"""The order of PyTorch's pipeline schedules: what each rank computes, one after the other.

    python golden_pipelines.py --output FILE

Of torch.distributed.pipelining: GPipe, 1F1B and interleaved 1F1B for several numbers of ranks, micro-batches and
stages per rank. No process group is opened: the order is a function of these numbers alone.
"""
import argparse
import json

from torch.distributed.pipelining import schedules


class Recorder:
    """A stage that computes nothing and notes what it is asked for."""

    def __init__(self, rank, ranks):
        self.stage_index, self.num_stages, self.is_last, self.has_backward = rank, ranks, rank + 1 == ranks, True
        self.done = []

    def forward_one_chunk(self, micro_batch, *_, **__):
        self.done.append(f"F{self.stage_index}.{micro_batch}")

    def backward_one_chunk(self, micro_batch, *_, **__):
        self.done.append(f"B{self.stage_index}.{micro_batch}")

    def __getattr__(self, name):
        return lambda *_, **__: []


def of_single(kind, ranks, micro_batches):
    """What a step does: the lists that _get_pipeline_order gives of 1F1B skip the last rank's first micro-batch."""
    lists = {}
    for rank in range(ranks):
        schedule = object.__new__(kind)
        schedule._stage = Recorder(rank, ranks)
        schedule._num_stages, schedule._n_microbatches, schedule.scale_grads = ranks, micro_batches, True
        schedule._has_backward = schedule._stage_initialized = schedule._stages_forward_initialized = True
        schedule._stages_backward_initialized = True
        for name in ("_initialize_stage", "_maybe_compute_loss", "_maybe_get_loss", "_update_losses",
                     "_check_inputs"):
            setattr(schedule, name, lambda *_, **__: ([()] * micro_batches, [{}] * micro_batches))
        schedule._step_microbatches([()] * micro_batches, [{}] * micro_batches, None, None)
        lists[rank] = schedule._stage.done
    return lists


def of_interleaved(ranks, micro_batches, chunks):
    schedule = object.__new__(schedules.ScheduleInterleaved1F1B)
    schedule.pp_group_size = ranks
    schedule.n_local_stages = chunks
    schedule._n_microbatches = micro_batches
    schedule.number_of_rounds = max(1, micro_batches // ranks)
    schedule.microbatches_per_round = micro_batches // schedule.number_of_rounds
    return {rank: schedule._calculate_single_rank_operations(rank) for rank in range(ranks)}


def words(actions):
    kinds = {"FORWARD": "F", "FULL_BACKWARD": "B"}
    if all(isinstance(action, str) for action in actions):
        return " ".join(actions)
    done = [action for action in actions if action is not None and action.computation_type.name in kinds]
    return " ".join(f"{kinds[action.computation_type.name]}{action.stage_index}.{action.microbatch_index}"
                    for action in done)


def cases():
    for ranks in (2, 3, 4, 8):
        for micro_batches in sorted({ranks, ranks + 1, 2 * ranks, 3 * ranks}):
            yield "gpipe", ranks, micro_batches, 1, of_single(schedules.ScheduleGPipe, ranks, micro_batches)
            yield "1f1b", ranks, micro_batches, 1, of_single(schedules.Schedule1F1B, ranks, micro_batches)
            for chunks in (2, 3):
                rounds = max(1, micro_batches // ranks)
                if micro_batches % rounds == 0:
                    yield "interleaved", ranks, micro_batches, chunks, of_interleaved(ranks, micro_batches, chunks)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", required=True)
    output = parser.parse_args().output
    out = [{"schedule": name, "ranks": ranks, "micro_batches": micro_batches, "chunks": chunks,
            "order": [words(order[rank]) for rank in range(ranks)]}
           for name, ranks, micro_batches, chunks, order in cases()]
    with open(output, "w") as file:
        json.dump(out, file, indent=0)
        file.write("\n")


if __name__ == "__main__":
    main()
