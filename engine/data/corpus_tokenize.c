/* Turns documents into ids on all cores. Two batches alternate: while the threads encode one, the first thread writes
 * the ids of the other and reads the next documents into it. Documents are written in the order in which they were
 * read. If several fail, the error of the earliest document is reported. */
#include "engine/data/corpus_internal.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/pool.h"
#include "engine/text/chat.h"
#include "engine/text/text.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    JOB_BYTES = OX_CORPUS_PIECE_BYTES,
    JOBS_PER_THREAD = 4,
    JOB_MEMORY_BYTES = 9 * JOB_BYTES, /* with an id and a mark per byte, and room to grow */
    KEPT_BYTES = 4 << 20, /* a job that grew beyond this frees its memory after use */
};
static const uint64_t log_pause_ns = UINT64_C(5000000000);

struct piece {
    const char *path;
    uint64_t line, offset;
    size_t text_end, id_end; /* in the job's text and ids; a piece begins where the previous one ends */
    size_t second; /* of a preference: where its second document begins in the ids */
    bool begins, ends;
    char *bad; /* why the row cannot be used; else NULL */
};

/* Pieces that one thread encodes, one after another. */
struct job {
    struct ox_text text;
    struct piece *pieces;
    size_t count, capacity;
    struct ox_ids ids;
    struct ox_id_mask trained;
    uint32_t is_chat; /* as in struct ox_cache_header */
    bool starved;     /* there was no memory to encode it beside others */
    struct ox_chat_noted noted[OX_NOTE_PLACED_COUNT]; /* each of the first piece that gives rise to it */
    const struct piece *noted_pieces[OX_NOTE_PLACED_COUNT];
    struct ox_first_failure failure;
};

struct worker {
    struct ox_encoder *encoder;
    struct ox_chat_renderer *renderer;
    struct ox_chat chat;
    struct ox_chat_pair pair;
};

struct run {
    struct ox_corpus_work *work;
    struct ox_pool *pool;
    struct worker *workers; /* one per thread */
    struct job *batches[2]; /* job_limit jobs each */
    uint32_t job_limit, job_room; /* jobs of a batch: how many there are, how many are used */
    uint32_t job_count[2];
    unsigned turn; /* index of the batch being encoded */
    atomic_uint next_job, failed_job;
    struct ox_first_failure written, read; /* the first failures of writing and reading */
    bool is_read; /* there is nothing left to read */
    struct ox_document waiting; /* read, but there was no memory to put it into a job */
    bool waits, alone;          /* there is such a document; nothing else can give memory back */
    uint64_t bytes, begin_ns, logged_ns;
};

/* ---- one piece ----------------------------------------------------------------------------------------------- */

static enum ox_status add_id(struct job *job, int64_t id, bool trained) {
    enum ox_status status = id >= 0 ? ox_ids_add(&job->ids, id) : OX_OK;
    if (id >= 0) {
        OX_THEN(status, ox_id_mask_append(&job->trained, trained, 1));
    }
    return status;
}

static enum ox_status encode_text(const struct ox_corpus_rules *rules, struct worker *worker, struct job *job,
                                  const struct piece *piece, const char *text, size_t bytes) {
    const bool has_bos = ox_chat_has_end(rules->tokenizer, rules->text_bos, text, bytes, false);
    const bool has_eos = ox_chat_has_end(rules->tokenizer, rules->text_eos, text, bytes, true);
    enum ox_status status = piece->begins && !has_bos ? add_id(job, rules->text_bos, true) : OX_OK;
    const size_t first = job->ids.count;
    OX_THEN(status, piece->begins ? ox_encode(worker->encoder, text, bytes, true, false, &job->ids)
                                  : ox_encode_continued(worker->encoder, text, bytes, true, &job->ids));
    OX_THEN(status, ox_id_mask_append(&job->trained, true, job->ids.count - first));
    return status == OX_OK && piece->ends && !has_eos ? add_id(job, rules->text_eos, true) : status;
}

static void keep_notes(const struct worker *worker, struct job *job, const struct piece *piece) {
    for (int i = 0; i < OX_NOTE_PLACED_COUNT; i++) {
        if (!job->noted[i].is_there) {
            job->noted[i] = ox_chat_noted(worker->renderer, (enum ox_chat_note)(OX_NOTE_PLACED + i));
            job->noted_pieces[i] = piece;
        }
    }
}

/* As in struct ox_cache_header; ids of which all are trained are a text. */
static uint32_t is_chat_row(const struct ox_chat *chat) {
    const bool is_text = chat->kind == OX_CHAT_IDS &&
                         (chat->trained.count == 0 || memchr(chat->trained.marks, 0, chat->trained.count) == NULL);
    return chat->kind == OX_CHAT_MESSAGES ? 2 : !is_text;
}

static enum ox_status encode_pair(const struct ox_corpus_rules *rules, struct worker *worker, struct job *job,
                                  struct piece *piece, const char *where, const char *text, size_t bytes) {
    enum ox_status status = ox_chat_read_pair(where, text, bytes, rules->columns, &worker->pair);
    OX_THEN(status, ox_chat_render_pair(worker->renderer, where, &worker->pair, &job->ids, &job->trained,
                                        &piece->second));
    if (status == OX_OK) {
        const uint32_t is_chat = is_chat_row(&worker->pair.chosen);
        job->is_chat = is_chat > job->is_chat ? is_chat : job->is_chat;
        keep_notes(worker, job, piece);
    }
    return status;
}

static enum ox_status encode_row(const struct ox_corpus_rules *rules, struct worker *worker, struct job *job,
                                 struct piece *piece, const char *text, size_t bytes) {
    char where[OX_PATH_BYTES + 32];
    snprintf(where, sizeof where, "%s:%" PRIu64, piece->path, piece->line);
    if (rules->pairs) {
        return encode_pair(rules, worker, job, piece, where, text, bytes);
    }
    enum ox_status status = ox_chat_read_line(where, text, bytes, rules->columns, &worker->chat);
    if (status != OX_OK) {
        return status;
    }
    if (worker->chat.kind == OX_CHAT_TEXT) {
        const char *const content = worker->chat.text;
        ox_chat_note_plain(worker->renderer, &worker->chat);
        keep_notes(worker, job, piece);
        status = encode_text(rules, worker, job, piece, content, strlen(content));
        return status == OX_OK ? OX_OK : ox_fail_in(status, "%s", where);
    }
    const uint32_t is_chat = is_chat_row(&worker->chat);
    job->is_chat = is_chat > job->is_chat ? is_chat : job->is_chat;
    status = ox_chat_render(worker->renderer, where, &worker->chat, &job->ids, &job->trained);
    if (status == OX_OK) {
        keep_notes(worker, job, piece);
    }
    return status;
}

static enum ox_status fail_memory(const struct ox_corpus_rules *rules, const struct piece *piece, size_t bytes) {
    char size[OX_SIZE_TEXT_BYTES];
    ox_size_text(bytes, size);
    return rules->rows ? ox_fail(OX_E_NOMEM, "%s:%" PRIu64 ": no memory to tokenize this row of %s; divide it",
                                 piece->path, piece->line, size)
                       : ox_fail(OX_E_NOMEM, "%s: no memory to tokenize the piece of %s that begins at byte %" PRIu64
                                 " and has no place to cut it; divide it", piece->path, size, piece->offset);
}

/* Encodes one piece. An error in its bytes names the file and the byte. */
static enum ox_status encode_piece(const struct ox_corpus_rules *rules, struct worker *worker, struct job *job,
                                   struct piece *piece, const char *text, size_t bytes) {
    const enum ox_status status = rules->rows ? encode_row(rules, worker, job, piece, text, bytes)
                                              : encode_text(rules, worker, job, piece, text, bytes);
    if (status == OX_E_NOMEM) {
        return fail_memory(rules, piece, bytes);
    }
    if (rules->rows) {
        return status;
    }
    const char *const nul = memchr(text, 0, bytes);
    if (nul != NULL) {
        return ox_fail(OX_E_CONFIG, "%s: is binary, with a NUL at byte %" PRIu64 ", and no text; keep it elsewhere",
                       piece->path, piece->offset + (uint64_t)(nul - text));
    }
    const size_t valid = status == OX_E_CORRUPT ? ox_utf8_valid(text, bytes) : bytes;
    if (valid < bytes) {
        return ox_fail(OX_E_CORRUPT,
                       "%s: is not UTF-8 text at byte %" PRIu64 " (0x%02x); make UTF-8 of it, if it is Latin-1 by: "
                       "iconv -f WINDOWS-1252 -t UTF-8 '%s' >utf8-text; or keep it elsewhere", piece->path,
                       piece->offset + valid, (unsigned char)text[valid], piece->path);
    }
    return status == OX_OK ? OX_OK : ox_fail_in(status, "%s", piece->path);
}

static void free_reasons(struct job *job) {
    for (size_t i = 0; i < job->count; i++) {
        free(job->pieces[i].bad);
        job->pieces[i].bad = NULL;
    }
}

static enum ox_status encode_job(const struct ox_corpus_rules *rules, struct worker *worker, struct job *job) {
    size_t begin = 0;
    job->ids.count = job->trained.count = 0;
    memset(job->noted, 0, sizeof job->noted);
    free_reasons(job); /* of an attempt for which there was no memory */
    for (size_t i = 0; i < job->count; i++) {
        struct piece *const piece = &job->pieces[i];
        const size_t id_count = job->ids.count, mark_count = job->trained.count;
        enum ox_status status =
            encode_piece(rules, worker, job, piece, job->text.data + begin, piece->text_end - begin);
        if (rules->skip_bad_rows > 0 && (status == OX_E_CONFIG || status == OX_E_CORRUPT)) {
            job->ids.count = id_count;
            job->trained.count = mark_count;
            piece->bad = strdup(ox_error_text());
            status = piece->bad != NULL ? OX_OK : OX_E_NOMEM;
        }
        if (status != OX_OK) {
            return status;
        }
        begin = piece->text_end;
        piece->id_end = job->ids.count;
    }
    return OX_OK;
}

/* ---- batches ------------------------------------------------------------------------------------------------- */

static void free_job(struct job *job) {
    free_reasons(job);
    ox_text_free(&job->text);
    free(job->pieces);
    ox_ids_free(&job->ids);
    ox_id_mask_free(&job->trained);
    memset(job, 0, sizeof *job);
}

static void empty_job(struct job *job) {
    if (job->text.capacity > KEPT_BYTES || job->ids.capacity > KEPT_BYTES / sizeof *job->ids.ids) {
        free_job(job);
    }
    free_reasons(job);
    job->text.bytes = job->count = job->ids.count = job->trained.count = 0;
    job->is_chat = 0;
    job->starved = false;
    memset(job->noted, 0, sizeof job->noted);
}

/* Leaves a row out that cannot be used, up to as many as may be. */
static enum ox_status leave_bad(struct ox_corpus_work *work, const char *why) {
    const uint32_t most = work->rules.skip_bad_rows;
    if (work->bad_count == most) {
        return ox_fail(OX_E_CONFIG, "%s; %" PRIu32 " row%s before it were left out, the limit of --skip-bad-rows", why,
                       most, ox_plural(most));
    }
    work->bad_count++;
    ox_log(OX_LOG_WARN, "left out (%" PRIu32 " of at most %" PRIu32 "): %s", work->bad_count, most, why);
    return OX_OK;
}

/* Writes the ids of a piece, unless it is a row without a token to be trained on; of a preference as two documents.
 * `first` is the first of them in the job's ids. */
static enum ox_status write_piece(struct ox_corpus_work *work, const struct piece *piece, const int32_t *ids,
                                  const uint8_t *trained, size_t first, size_t count) {
    if (piece->bad != NULL) {
        return leave_bad(work, piece->bad);
    }
    if (work->rules.pairs) {
        const size_t one = piece->second - first;
        OX_TRY(ox_cache_add(work->writer, true, ids, trained, one));
        return ox_cache_add(work->writer, true, ids + one, trained + one, count - one);
    }
    if (work->rules.rows && count > 0 && memchr(trained, 1, count) == NULL) {
        if (work->untrained_count == 0) {
            snprintf(work->untrained_first, sizeof work->untrained_first, "%s:%" PRIu64, piece->path, piece->line);
        }
        work->untrained_count += work->untrained_count < UINT32_MAX;
        return OX_OK;
    }
    return ox_cache_add(work->writer, piece->begins, ids, trained, count);
}

static void take_notes(struct ox_corpus_work *work, const struct job *job) {
    for (int i = 0; i < OX_NOTE_PLACED_COUNT; i++) {
        const struct ox_chat_noted *const noted = &job->noted[i];
        char *const first = work->noted_first[i];
        if (!noted->is_there || first[0] != '\0') {
            continue;
        }
        const size_t used = (size_t)snprintf(first, sizeof work->noted_first[i], "%s:%" PRIu64 ": ",
                                             job->noted_pieces[i]->path, job->noted_pieces[i]->line);
        if (i + OX_NOTE_PLACED == OX_NOTE_JUDGED) {
            snprintf(first + used, sizeof work->noted_first[i] - used, "\"%s\"", noted->name);
        } else {
            snprintf(first + used, sizeof work->noted_first[i] - used, "message %zu, of the role \"%s\"",
                     noted->message_idx + 1, noted->name);
        }
    }
}

static enum ox_status write_batch(struct run *run, unsigned which) {
    for (uint32_t i = 0; i < run->job_count[which]; i++) {
        const struct job *const job = &run->batches[which][i];
        size_t from = 0;
        for (size_t k = 0; k < job->count; k++) {
            const struct piece *const piece = &job->pieces[k];
            const enum ox_status status = write_piece(run->work, piece, job->ids.ids + from,
                                                      job->trained.marks + from, from, piece->id_end - from);
            if (status != OX_OK) {
                return status;
            }
            from = piece->id_end;
        }
        take_notes(run->work, job);
        run->work->is_chat = job->is_chat > run->work->is_chat ? job->is_chat : run->work->is_chat;
    }
    return OX_OK;
}

static enum ox_status add_piece(struct job *job, const struct ox_document *document) {
    enum ox_status status =
        ox_tok_reserve((void **)&job->pieces, &job->capacity, job->count + 1, sizeof *job->pieces);
    OX_THEN(status, ox_text_append(&job->text, document->text, document->bytes));
    if (status == OX_OK) {
        job->pieces[job->count++] = (struct piece){.path = document->path,
                                                   .line = document->line,
                                                   .offset = document->offset,
                                                   .text_end = job->text.bytes,
                                                   .begins = document->begins,
                                                   .ends = document->ends};
    }
    return status;
}

/* Reads the next document; one that waits is the next. */
static enum ox_status next_document(struct run *run, bool *found) {
    enum ox_status status = OX_OK;
    *found = run->waits;
    if (!run->waits) {
        status = ox_documents_next(run->work->documents, &run->waiting, found);
    }
    run->waits = status == OX_OK && *found;
    return status;
}

static enum ox_status fill_job(struct run *run, struct job *job) {
    bool found = true;
    enum ox_status status = OX_OK;
    while (status == OX_OK && job->text.bytes < JOB_BYTES && !run->is_read) {
        status = next_document(run, &found);
        if (status == OX_OK && found) {
            status = add_piece(job, &run->waiting);
            if (status == OX_E_NOMEM) {
                const struct piece piece = {
                    .path = run->waiting.path, .line = run->waiting.line, .offset = run->waiting.offset};
                return fail_memory(&run->work->rules, &piece, run->waiting.bytes);
            }
            run->bytes += run->waiting.bytes;
            run->waits = false;
        }
        run->is_read = status == OX_OK && !found;
    }
    return status;
}

/* Reads documents into a batch, at most as many bytes as it has room for, or one more document. A failure is kept until
 * the documents read before it are encoded, since one of them may fail too. Where memory is short, fewer documents make
 * a batch. */
static void fill_batch(struct run *run, unsigned which) {
    size_t bytes = 0;
    run->job_count[which] = 0;
    for (uint32_t i = 0; i < run->job_limit; i++) {
        if (i < run->job_room) {
            empty_job(&run->batches[which][i]);
        } else {
            free_job(&run->batches[which][i]);
        }
    }
    while (!run->is_read && run->job_count[which] < run->job_room && bytes < (size_t)run->job_room * JOB_BYTES) {
        struct job *const job = &run->batches[which][run->job_count[which]];
        const enum ox_status status = fill_job(run, job);
        bytes += job->text.bytes;
        run->job_count[which] += job->count > 0;
        if (status == OX_E_NOMEM && !run->alone) {
            return;
        }
        ox_first_failure_note(&run->read, status);
        run->is_read = run->is_read || status != OX_OK;
    }
}

/* What one thread does in a turn: thread 0 first writes and refills the other batch, then all encode jobs. */
static void work_on_turn(void *context, uint32_t idx, uint32_t count) {
    struct run *const run = context;
    const struct ox_corpus_rules *const rules = &run->work->rules;
    (void)count;
    if (idx == 0) {
        ox_first_failure_note(&run->written, write_batch(run, 1 - run->turn));
        if (run->written.status == OX_OK) {
            fill_batch(run, 1 - run->turn);
        }
    }
    while (run->workers[idx].encoder != NULL) {
        const uint32_t at = atomic_fetch_add(&run->next_job, 1);
        /* After a failure only earlier jobs are still encoded: if one of them fails too, its error is reported. */
        if (at >= run->job_count[run->turn] || at > atomic_load(&run->failed_job)) {
            return;
        }
        struct job *const job = &run->batches[run->turn][at];
        const enum ox_status status = encode_job(rules, &run->workers[idx], job);
        job->starved = status == OX_E_NOMEM;
        ox_first_failure_note(&job->failure, job->starved ? OX_OK : status);
        if (job->failure.status != OX_OK) {
            unsigned known = atomic_load(&run->failed_job);
            while (at < known && !atomic_compare_exchange_weak(&run->failed_job, &known, at)) {
            }
        }
    }
}

/* The failure of the earliest document; what is being written comes before what is being encoded. */
static enum ox_status turn_result(const struct run *run) {
    const uint32_t failed = atomic_load(&run->failed_job);
    if (run->written.status != OX_OK || failed == UINT32_MAX) {
        return ox_first_failure_result(&run->written);
    }
    return ox_first_failure_result(&run->batches[run->turn][failed].failure);
}

/* ---- the whole ----------------------------------------------------------------------------------------------- */

static void log_progress(struct run *run) {
    const uint64_t now = ox_clock_ns(), total = ox_documents_bytes(run->work->documents);
    if (now - run->logged_ns < log_pause_ns) {
        return;
    }
    run->logged_ns = now;
    ox_log(OX_LOG_INFO, "tokenizing %s: %.0f %%, %.1f MB/s", run->work->path,
           total > 0 ? 100.0 * (double)ox_documents_bytes_read(run->work->documents) / (double)total : 100.0,
           (double)run->bytes * 1e3 / (double)(now - run->begin_ns));
}

static void close_workers(struct run *run) {
    for (uint32_t i = 0; run->workers != NULL && i < run->work->threads; i++) {
        if (run->workers[i].renderer != NULL) {
            ox_chat_add_notes(run->workers[i].renderer, &run->work->notes);
        }
        ox_encoder_close(&run->workers[i].encoder);
        ox_chat_close(&run->workers[i].renderer);
        ox_chat_free(&run->workers[i].chat);
        ox_chat_pair_free(&run->workers[i].pair);
    }
}

static enum ox_status open_worker(const struct ox_corpus_rules *rules, struct worker *worker) {
    enum ox_status status = ox_encoder_open(rules->tokenizer, &worker->encoder);
    if (status == OX_OK && rules->rows) {
        status = ox_chat_open(rules->tokenizer, &rules->chat, &worker->renderer);
    }
    return status;
}

/* Opens the first worker, and of the others as many as there is memory for: a thread without one encodes nothing. */
static enum ox_status open_workers(struct run *run, uint32_t count) {
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; status == OX_OK && i < count; i++) {
        struct worker *const worker = &run->workers[i];
        status = open_worker(&run->work->rules, worker);
        if (status == OX_E_NOMEM && i > 0) {
            ox_encoder_close(&worker->encoder);
            ox_chat_close(&worker->renderer);
            return OX_OK;
        }
    }
    return status;
}

/* Encodes the jobs for which there was no memory one after another, when what large texts left with the threads is
 * given back. From then on batches are smaller. */
static enum ox_status encode_starved(struct run *run) {
    const uint32_t failed = atomic_load(&run->failed_job);
    bool alone = false;
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; status == OX_OK && i < run->job_count[run->turn] && i < failed; i++) {
        struct job *const job = &run->batches[run->turn][i];
        if (job->starved && !alone) {
            alone = true;
            run->job_room = run->job_room > 1 ? run->job_room / 2 : 1;
            close_workers(run);
            status = open_workers(run, 1);
        }
        if (job->starved) {
            ox_ids_free(&job->ids);
            ox_id_mask_free(&job->trained);
            OX_THEN(status, encode_job(&run->work->rules, &run->workers[0], job));
            job->starved = false;
        }
    }
    if (alone) {
        close_workers(run);
        OX_THEN(status, open_workers(run, run->work->threads));
    }
    return status;
}

/* Reads the next batch when nothing else holds memory, because there was none for a document beside other work. */
static enum ox_status read_alone(struct run *run) {
    enum ox_status status = write_batch(run, 1 - run->turn);
    for (uint32_t i = 0; i < run->job_count[1 - run->turn]; i++) {
        free_job(&run->batches[1 - run->turn][i]);
    }
    run->job_count[1 - run->turn] = 0;
    close_workers(run);
    OX_THEN(status, open_workers(run, run->work->threads));
    run->alone = true;
    if (status == OX_OK) {
        fill_batch(run, run->turn);
    }
    run->alone = false;
    return status;
}

static enum ox_status run_all(struct run *run) {
    const volatile sig_atomic_t *const stop = run->work->stop;
    enum ox_status status = OX_OK;
    fill_batch(run, run->turn);
    for (;;) {
        if (status == OX_OK && run->job_count[run->turn] == 0 && !run->is_read) {
            status = read_alone(run);
        }
        if (status != OX_OK || run->job_count[run->turn] == 0) {
            break;
        }
        if (ox_is_raised(stop)) {
            return ox_fail(OX_E_ABORTED, "%s: was not tokenized, because the run was stopped", run->work->path);
        }
        atomic_store(&run->next_job, 0);
        atomic_store(&run->failed_job, UINT32_MAX);
        ox_pool_run(run->pool, work_on_turn, run);
        status = encode_starved(run);
        OX_THEN(status, turn_result(run));
        run->turn = 1 - run->turn;
        log_progress(run);
    }
    OX_THEN(status, ox_first_failure_result(&run->read));
    return status == OX_OK ? write_batch(run, 1 - run->turn) : status;
}

static void close_run(struct run *run) {
    close_workers(run);
    for (unsigned which = 0; which < 2; which++) {
        for (uint32_t i = 0; run->batches[which] != NULL && i < run->job_limit; i++) {
            free_job(&run->batches[which][i]);
        }
        free(run->batches[which]);
    }
    free(run->workers);
    ox_pool_close(&run->pool);
}

/* Jobs of a batch: some per thread, as far as both batches fit half of the memory that is left. */
static uint32_t choose_jobs(uint32_t threads) {
    struct ox_memory memory;
    ox_memory_read("", &memory);
    const uint64_t fit = ox_min_u64(memory.usable, memory.addresses) / 2 / (2 * (uint64_t)JOB_MEMORY_BYTES);
    return (uint32_t)ox_max_u64(ox_min_u64(fit, (uint64_t)JOBS_PER_THREAD * threads), 1);
}

static enum ox_status open_run(struct run *run) {
    run->job_limit = run->job_room = choose_jobs(run->work->threads);
    run->workers = calloc(run->work->threads, sizeof *run->workers);
    run->batches[0] = calloc(run->job_limit, sizeof *run->batches[0]);
    run->batches[1] = calloc(run->job_limit, sizeof *run->batches[1]);
    if (run->workers == NULL || run->batches[0] == NULL || run->batches[1] == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to tokenize it", run->work->path);
    }
    enum ox_status status = ox_pool_open(run->work->threads, &run->pool);
    OX_THEN(status, open_workers(run, run->work->threads));
    return status;
}

enum ox_status ox_corpus_look(struct ox_corpus_work *work) {
    struct run run = {.work = work};
    work->threads = 1;
    enum ox_status status = open_run(&run);
    if (status == OX_OK) {
        run.job_room = 1;
        fill_batch(&run, 0);
        status = run.job_count[0] > 0 ? encode_job(&work->rules, &run.workers[0], &run.batches[0][0]) : OX_OK;
    }
    OX_THEN(status, ox_first_failure_result(&run.read));
    close_run(&run);
    return status == OX_E_NOMEM ? OX_OK : status; /* a row that is too large may fit when all is tokenized */
}

enum ox_status ox_corpus_tokenize(struct ox_corpus_work *work) {
    struct run run = {.work = work, .begin_ns = ox_clock_ns()};
    run.logged_ns = run.begin_ns;
    enum ox_status status = open_run(&run);
    OX_THEN(status, run_all(&run));
    close_run(&run);
    return status;
}
