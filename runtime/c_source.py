"""The C text of an exported library: header, source and example, with words to fill in.

c_library._filled(HEADER, {"NAME": "model", ...})
"""

HEADER = r"""/* A compiled tensor program as a C library: by dodeca @VERSION@, for a CPU like
 * @CORE@.
 *
@TENSORS@
 *
 * Arrays are dense and row-major; a bool is one byte, 0 or 1; a bfloat16 is the upper half of a
 * float. All functions may be called from any number of threads at once; calls with more than one
 * thread take turns. The library keeps its threads and some memory until the process ends, and is
 * not unloaded before.
 */
#ifndef @UPPER@_H
#define @UPPER@_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define @UPPER@_ABI @ABI@ /* what @NAME@_abi() gives; another number means another header */
#define @UPPER@_INPUTS @INPUTS@
#define @UPPER@_OUTPUTS @OUTPUTS@
@SIZES@

enum {
  @UPPER@_OK = 0,
  @UPPER@_ERROR_NULL = 1,      /* an array is a null pointer */
  @UPPER@_ERROR_ALIGNMENT = 2, /* an array does not start at a multiple of its elements' size */
  @UPPER@_ERROR_OVERLAP = 3,   /* an output overlaps an input or another output */
  @UPPER@_ERROR_THREADS = 4,   /* a number of threads below 0, or threads could not be started */
  @UPPER@_ERROR_MEMORY = 5,    /* there is not enough memory */
  @UPPER@_ERROR_CPU = 6        /* this CPU lacks instructions that the code uses */
};

/* One input or output. A name may be empty; a shape has `rank` sizes. */
struct @NAME@_tensor {
  const char *name;
  const char *dtype; /* "float32", "float16", "bfloat16", "float64", "int8", "uint8", ... */
  int rank;
  const int64_t *shape;
  size_t bytes;
  size_t element_bytes;
};

int @NAME@_abi(void);

/* What an input or output is; NULL if there is none of that number. */
const struct @NAME@_tensor *@NAME@_input(int number);
const struct @NAME@_tensor *@NAME@_output(int number);

/* Run the program: reads the inputs, writes the outputs, returns when all is written.
 *
 * `inputs` and `outputs` are arrays of pointers, in the order above; `threads` is how many threads
 * compute, 0 for all cores of this process. Results do not depend on it. Returns @UPPER@_OK or an
 * error, after which the outputs hold nothing of use. */
int @NAME@_run(const void *const inputs[], void *const outputs[], int threads);

/* An error in words. */
const char *@NAME@_error(int code);

#ifdef __cplusplus
}
#endif

#endif
"""

SOURCE = r"""/* Written by dodeca @VERSION@. The weights' SHA-256 is @DIGEST@. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "@NAME@.h"

enum { LINE = @LINE@, SPIN = @SPIN@, PARK = @PARK@, MOST_THREADS = 1024 };

/* --- the program ---------------------------------------------------------------------------- */

#define HIDDEN __attribute__((visibility("hidden")))
#define FUNCTION extern HIDDEN void

@KERNELS@
struct launch {
  void (*call)(void);
  void (*kernel)(void);
  const int64_t *ids;
  int64_t grid, wait;
};
struct place {
  int64_t buffer, offset;
};

static const int64_t ids[] = {@IDS@};
static const struct launch plan[] = {
    @PLAN@};
static const struct place places[] = {@PLACES@};   /* in the arena */
static const struct place constants[] = {@WEIGHTS@}; /* in the weights */
static const struct @NAME@_tensor input_tensors[] = {
    @INPUT_TENSORS@};
static const struct @NAME@_tensor output_tensors[] = {
    @OUTPUT_TENSORS@};
static const int64_t input_ids[] = {@INPUT_IDS@};
static const int64_t output_ids[] = {@OUTPUT_IDS@};
static const int copied[] = {@COPIED@}; /* outputs that are copies of something else */
static const char *const cpu_flags[] = {@FLAGS@ NULL};

extern HIDDEN const unsigned char dodeca_weights[];
__asm__(".pushsection .rodata\n"
        ".balign 64\n"
        ".globl dodeca_weights\n"
        ".hidden dodeca_weights\n"
        "dodeca_weights:\n"
        ".incbin \"weights.bin\"\n"
        ".popsection\n");

extern HIDDEN int dodeca_start(void *worker);
extern HIDDEN void dodeca_alone(const struct launch *, int64_t, void *const *);
extern HIDDEN void dodeca_together(void *pool, const struct launch *, int64_t, void *const *);

/* --- what the arguments must be ------------------------------------------------------------- */

static int check(const struct @NAME@_tensor *tensor, const void *array) {
  if (tensor->bytes && !array) return @UPPER@_ERROR_NULL;
  return (uintptr_t)array % tensor->element_bytes ? @UPPER@_ERROR_ALIGNMENT : @UPPER@_OK;
}

static int overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
  uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
  return a_bytes && b_bytes && x < y + b_bytes && y < x + a_bytes;
}

static int check_all(const void *const inputs[], void *const outputs[]) {
  if ((@UPPER@_INPUTS && !inputs) || (@UPPER@_OUTPUTS && !outputs)) return @UPPER@_ERROR_NULL;
  for (int i = 0; i < @UPPER@_INPUTS; i++) {
    int code = check(&input_tensors[i], inputs[i]);
    if (code) return code;
  }
  for (int i = 0; i < @UPPER@_OUTPUTS; i++) {
    size_t bytes = output_tensors[i].bytes;
    int code = check(&output_tensors[i], outputs[i]);
    if (code) return code;
    for (int j = 0; j < @UPPER@_INPUTS; j++)
      if (overlap(outputs[i], bytes, inputs[j], input_tensors[j].bytes))
        return @UPPER@_ERROR_OVERLAP;
    for (int j = 0; j < i; j++)
      if (overlap(outputs[i], bytes, outputs[j], output_tensors[j].bytes))
        return @UPPER@_ERROR_OVERLAP;
  }
  return @UPPER@_OK;
}

/* Whether Linux says that this CPU can do all that the code does. */
static int cpu_fits(void) {
  static atomic_int known; /* 0: not looked yet, 1: no, 2: yes */
  int answer = atomic_load(&known);
  if (answer) return answer == 2;
  FILE *file = fopen("/proc/cpuinfo", "r");
  char *line = NULL;
  size_t room = 0;
  answer = 1;
  while (file && getline(&line, &room, file) > 0) {
    if (strncmp(line, "flags", 5) && strncmp(line, "Features", 8)) continue;
    answer = 2;
    for (int i = 0; cpu_flags[i]; i++) {
      size_t length = strlen(cpu_flags[i]);
      char *at = line;
      while ((at = strstr(at, cpu_flags[i])) &&
             !(at[-1] == ' ' && (at[length] == ' ' || at[length] == '\n')))
        at += length;
      if (!at) answer = 1;
    }
    break;
  }
  free(line);
  if (file) fclose(file);
  atomic_store(&known, answer);
  return answer == 2;
}

/* --- memory --------------------------------------------------------------------------------- */

/* What one call at a time needs; the last one is kept for the next call. */
struct frame {
  void *buffers[@BUFFERS@];
  unsigned char *arena;
};
static _Atomic(struct frame *) spare;

static void drop(struct frame *frame) {
  if (frame) free(frame->arena);
  free(frame);
}

static struct frame *take(void) {
  struct frame *frame = atomic_exchange(&spare, NULL);
  if (frame) return frame;
  frame = calloc(1, sizeof *frame);
  if (!frame) return NULL;
  frame->arena = aligned_alloc(4096, @ARENA@);
  if (!frame->arena) {
    drop(frame);
    return NULL;
  }
  for (const struct place *p = places; p->buffer >= 0; p++)
    frame->buffers[p->buffer] = frame->arena + p->offset;
  for (const struct place *p = constants; p->buffer >= 0; p++)
    frame->buffers[p->buffer] = (void *)(dodeca_weights + p->offset);
  return frame;
}

/* --- threads -------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *pools[MOST_THREADS + 1]; /* by the number of threads */

/* A forked child has none of its parent's threads. */
static void forget(void) {
  memset(pools, 0, sizeof pools);
  pthread_mutex_init(&lock, NULL);
}

static int cores(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

/* The team of that many threads, while the lock is held; NULL if it cannot be started. */
static void *pool(int threads) {
  static int registered;
  if (pools[threads]) return pools[threads];
  if (!registered && pthread_atfork(NULL, NULL, forget)) return NULL;
  registered = 1;
  unsigned char *made = aligned_alloc(LINE, (size_t)LINE * (size_t)(2 + threads));
  if (!made) return NULL;
  memset(made, 0, (size_t)LINE * (size_t)(2 + threads));
  int crowded = threads > cores(); /* then whoever spins keeps another from running */
  int64_t *settings = (int64_t *)made;
  settings[3] = threads;
  settings[4] = crowded ? 0 : SPIN;
  settings[5] = crowded ? 0 : PARK;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before); /* signals are the caller's */
  int failed = 0;
  for (int thread = 1; thread < threads && !failed; thread++) {
    int64_t *worker = (int64_t *)(made + LINE * (2 + thread));
    worker[5] = (int64_t)(intptr_t)made;
    worker[6] = thread;
    failed = dodeca_start(worker);
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return failed ? NULL : (pools[threads] = made); /* those that were started keep the memory */
}

/* --- the functions of the header ------------------------------------------------------------ */

int @NAME@_abi(void) { return @UPPER@_ABI; }

const struct @NAME@_tensor *@NAME@_input(int number) {
  return number >= 0 && number < @UPPER@_INPUTS ? &input_tensors[number] : NULL;
}

const struct @NAME@_tensor *@NAME@_output(int number) {
  return number >= 0 && number < @UPPER@_OUTPUTS ? &output_tensors[number] : NULL;
}

int @NAME@_run(const void *const inputs[], void *const outputs[], int threads) {
  int code = check_all(inputs, outputs);
  if (code) return code;
  if (threads < 0 || threads > MOST_THREADS) return @UPPER@_ERROR_THREADS;
  if (!cpu_fits()) return @UPPER@_ERROR_CPU;
  if (threads == 0) threads = cores() < MOST_THREADS ? cores() : MOST_THREADS;
  if (threads > @WIDEST@) threads = @WIDEST@;
  struct frame *frame = take();
  if (!frame) return @UPPER@_ERROR_MEMORY;
  for (int i = 0; i < @UPPER@_INPUTS; i++) frame->buffers[input_ids[i]] = (void *)inputs[i];
  for (int i = 0; i < @UPPER@_OUTPUTS; i++)
    if (!copied[i]) frame->buffers[output_ids[i]] = outputs[i];
  if (threads > 1) {
    pthread_mutex_lock(&lock);
    void *team = pool(threads);
    if (team) dodeca_together(team, plan, @LAUNCHES@, frame->buffers);
    pthread_mutex_unlock(&lock);
    if (!team) code = @UPPER@_ERROR_THREADS;
  } else if (threads == 1) {
    dodeca_alone(plan, @LAUNCHES@, frame->buffers);
  }
  for (int i = 0; i < @UPPER@_OUTPUTS && !code; i++)
    if (copied[i] && output_tensors[i].bytes)
      memcpy(outputs[i], frame->buffers[output_ids[i]], output_tensors[i].bytes);
  drop(atomic_exchange(&spare, frame));
  return code;
}

const char *@NAME@_error(int code) {
  static const char *const words[] = {
      "no error",
      "an array is a null pointer",
      "an array does not start at a multiple of its elements' size",
      "an output overlaps an input or another output",
      "the number of threads is wrong, or they could not be started",
      "there is not enough memory",
      "this CPU lacks instructions that the code uses: it was compiled for a @CORE@",
  };
  return code >= 0 && code < (int)(sizeof words / sizeof *words) ? words[code] : "unknown error";
}
"""

EXAMPLE = r"""/* Reads a file of raw bytes for each input, writes the outputs to standard output:
 *
 *   cc example.c -L. -l@NAME@ -Wl,-rpath,'$ORIGIN' -o example && ./example input0 ... > outputs
 */
#include <stdio.h>
#include <stdlib.h>

#include "@NAME@.h"

int main(int count, char **paths) {
  void *inputs[@UPPER@_INPUTS + 1], *outputs[@UPPER@_OUTPUTS + 1];
  for (int i = 0; i < @UPPER@_INPUTS; i++) {
    size_t bytes = @NAME@_input(i)->bytes;
    FILE *file = i + 1 < count ? fopen(paths[i + 1], "rb") : NULL;
    if (!file || fread(inputs[i] = malloc(bytes + 1), 1, bytes, file) != bytes) return 2;
  }
  for (int i = 0; i < @UPPER@_OUTPUTS; i++) outputs[i] = malloc(@NAME@_output(i)->bytes + 1);
  int code = @NAME@_run((const void *const *)inputs, outputs, 0);
  if (code) return fprintf(stderr, "%s\n", @NAME@_error(code)), 1;
  for (int i = 0; i < @UPPER@_OUTPUTS; i++)
    fwrite(outputs[i], 1, @NAME@_output(i)->bytes, stdout);
  return 0;
}
"""
