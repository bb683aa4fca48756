/* One block of trace text -> columns of numbers: what traces/decode.py does with msgspec, for text without surprises.
 *
 * Whatever is not plain (damage, unusual types, large numbers, more than three decimals) makes `scan` refuse the whole
 * block; the reader in Python then takes it, so that this file holds no repair and no second meaning. Texts (names,
 * categories, threads, shapes) are given codes in order of first sight; their JSON text goes to Python once.
 *
 * The text ends with a zero byte, as every bytes object does: it is valid nowhere and ends every loop. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NONE (-1)
#define LINKS 6
#define MAX_KEYS 64
#define MAX_DEPTH 64
#define MAX_KEY_BYTES 32
#define MAX_US ((int64_t)1 << 53)
#define CAPSULE "stepscope.traces._event_scan"

enum { TS, DUR, CATEGORY, NAME, THREAD, SHAPE, FIRST_LINK, START = FIRST_LINK + LINKS, END, SPECIAL, COLUMNS };
enum { DIMS = LINKS, TYPES, OTHER_KEY }; /* keys of args beyond the links */

typedef struct {
    const char *at;
    Py_ssize_t size;
} Slice;

#ifdef __GNUC__
typedef unsigned char Sixteen __attribute__((vector_size(16)));
#endif

/* Texts, or pairs of texts, and their codes: open addressing over entries in order of first sight. */
typedef struct {
    size_t offset;
    uint64_t hash;
    Py_ssize_t first, second; /* bytes */
} Entry;

typedef struct {
    Entry *entries;
    int64_t count, room, told;
    int64_t *slots; /* index + 1; a power of two of them */
    size_t mask;
    char *text;
    size_t used, space;
} Table;

typedef struct {
    Table categories, names, threads, shapes;
    struct {
        char text[MAX_KEY_BYTES];
        int size, meaning;
    } keys[MAX_KEYS];
    int key_count, first_of_size[MAX_KEY_BYTES + 1]; /* keys ascend by size */
    int may_be_text; /* bit i: link i */
    int64_t *columns[COLUMNS];
    size_t room;
} Scanner;

static uint64_t hash_of(uint64_t hash, const char *at, Py_ssize_t size) {
    const uint64_t prime = 0x9E3779B97F4A7C15ull;
    hash ^= (uint64_t)size * prime;
    while (size >= 8) {
        uint64_t part;
        memcpy(&part, at, 8);
        hash = (hash ^ part) * prime;
        hash ^= hash >> 29;
        at += 8;
        size -= 8;
    }
    uint64_t part = 0;
    memcpy(&part, at, (size_t)size);
    hash = (hash ^ part) * prime;
    return hash ^ (hash >> 32);
}

static int rebuilt(Table *table, size_t slots) {
    int64_t *fresh = calloc(slots, sizeof *fresh);
    if (!fresh)
        return 0;
    free(table->slots);
    table->slots = fresh;
    table->mask = slots - 1;
    for (int64_t i = 0; i < table->count; i++) {
        size_t slot = table->entries[i].hash & table->mask;
        while (fresh[slot])
            slot = (slot + 1) & table->mask;
        fresh[slot] = i + 1;
    }
    return 1;
}

/* The code of a text or a pair; *is_new says whether it was not there. -1: no memory. */
static int64_t code_of(Table *table, Slice first, Slice second, int *is_new) {
    uint64_t hash = hash_of(hash_of(0, first.at, first.size), second.at, second.size);
    *is_new = 0;
    if ((size_t)table->count * 2 >= table->mask && !rebuilt(table, table->mask ? (table->mask + 1) * 2 : 256))
        return -1;
    size_t slot = hash & table->mask;
    for (; table->slots[slot]; slot = (slot + 1) & table->mask) {
        Entry *entry = &table->entries[table->slots[slot] - 1];
        if (entry->hash == hash && entry->first == first.size && entry->second == second.size &&
            !memcmp(table->text + entry->offset, first.at, (size_t)first.size) &&
            !memcmp(table->text + entry->offset + first.size, second.at, (size_t)second.size))
            return table->slots[slot] - 1;
    }
    if (table->count == table->room) {
        int64_t room = table->room ? table->room * 2 : 128;
        Entry *grown = realloc(table->entries, (size_t)room * sizeof *grown);
        if (!grown)
            return -1;
        table->entries = grown;
        table->room = room;
    }
    size_t needed = table->used + (size_t)(first.size + second.size);
    if (needed >= table->space) {
        size_t space = needed * 2 + 64;
        char *grown = realloc(table->text, space);
        if (!grown)
            return -1;
        table->text = grown;
        table->space = space;
    }
    memcpy(table->text + table->used, first.at, (size_t)first.size);
    memcpy(table->text + table->used + first.size, second.at, (size_t)second.size);
    table->entries[table->count] = (Entry){table->used, hash, first.size, second.size};
    table->used = needed;
    table->slots[slot] = ++table->count;
    *is_new = 1;
    return table->count - 1;
}

/* Forget what was not told to Python: it came from a block that is refused. */
static int forget_new(Table *table) {
    if (table->count == table->told)
        return 1;
    table->used = table->entries[table->told].offset;
    table->count = table->told;
    return rebuilt(table, table->mask + 1);
}

static const char *blank(const char *p) {
    while (*p == ' ' || *p == '\n' || *p == '\t' || *p == '\r')
        p++;
    return p;
}

static int hex4(const char *p) {
    int value = 0;
    for (int i = 0; i < 4; i++) {
        int c = (unsigned char)p[i], low = c | 32;
        if (c >= '0' && c <= '9')
            value = value * 16 + c - '0';
        else if (low >= 'a' && low <= 'f')
            value = value * 16 + low - 'a' + 10;
        else
            return -1;
    }
    return value;
}

/* Which of eight bytes is the first with its top bit set; of those above it a borrow may have set some. */
#if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define FIRST_HIT(hits) (__builtin_ctzll(hits) >> 3)
#else
#define FIRST_HIT(hits) 0
#endif

/* After an opening quote: its closing quote. NULL: not valid JSON, or half of a surrogate pair. */
static const char *string_end(const char *p, const char *end) {
    const uint64_t ones = 0x0101010101010101ull, tops = 0x8080808080808080ull;
    for (;;) {
        while (end - p >= 8) {
            uint64_t part, quote, slash, hits;
            memcpy(&part, p, 8);
            quote = part ^ (ones * '"');
            slash = part ^ (ones * '\\');
            hits = (((quote - ones) & ~quote) | ((slash - ones) & ~slash) | ((part - ones * 0x20) & ~part)) & tops;
            if (hits) {
                p += FIRST_HIT(hits);
                break;
            }
            p += 8;
        }
        unsigned char c = (unsigned char)*p;
        if (c == '"')
            return p;
        if (c < 0x20)
            return NULL;
        if (c != '\\') {
            p++;
            continue;
        }
        switch (p[1]) {
        case '"': case '\\': case '/': case 'b': case 'f': case 'n': case 'r': case 't':
            p += 2;
            break;
        case 'u': {
            int unit = hex4(p + 2);
            if (unit < 0 || (unit >= 0xDC00 && unit <= 0xDFFF))
                return NULL;
            p += 6;
            if (unit >= 0xD800 && unit <= 0xDBFF) {
                int low = p[0] == '\\' && p[1] == 'u' ? hex4(p + 2) : -1;
                if (low < 0xDC00 || low > 0xDFFF)
                    return NULL;
                p += 6;
            }
            break;
        }
        default:
            return NULL;
        }
    }
}

static int is_digit(char c) { return c >= '0' && c <= '9'; }

/* Behind the number that begins at p; NULL: none. */
static const char *number_end(const char *p) {
    p += *p == '-';
    if (!is_digit(*p))
        return NULL;
    if (*p == '0' && is_digit(p[1]))
        return NULL;
    while (is_digit(*p))
        p++;
    if (*p == '.') {
        if (!is_digit(*++p))
            return NULL;
        while (is_digit(*p))
            p++;
    }
    if ((*p | 32) == 'e') {
        p++;
        p += *p == '+' || *p == '-';
        if (!is_digit(*p))
            return NULL;
        while (is_digit(*p))
            p++;
    }
    return p;
}

/* Behind the value that begins at p; NULL: no valid JSON, or too deep. */
static const char *value_end(const char *p, const char *end, int depth) {
    switch (*p) {
    case '"':
        p = string_end(p + 1, end);
        return p ? p + 1 : NULL;
    case '{':
    case '[': {
        char closes = *p == '{' ? '}' : ']';
        if (depth == MAX_DEPTH)
            return NULL;
        p = blank(p + 1);
        if (*p == closes)
            return p + 1;
        for (;;) {
            if (closes == '}') {
                if (*p != '"' || !(p = string_end(p + 1, end)))
                    return NULL;
                p = blank(p + 1);
                if (*p != ':')
                    return NULL;
                p = blank(p + 1);
            }
            if (!(p = value_end(p, end, depth + 1)))
                return NULL;
            p = blank(p);
            if (*p == closes)
                return p + 1;
            if (*p != ',')
                return NULL;
            p = blank(p + 1);
        }
    }
    case 't':
        return strncmp(p, "true", 4) ? NULL : p + 4;
    case 'f':
        return strncmp(p, "false", 5) ? NULL : p + 5;
    case 'n':
        return strncmp(p, "null", 4) ? NULL : p + 4;
    default:
        return number_end(p);
    }
}

/* Behind a whole number without sign, of so many digits at most; NULL: none, or a longer one. */
static const char *digits_end(const char *p, int most, int64_t *value) {
    if (!is_digit(*p) || (*p == '0' && is_digit(p[1])))
        return NULL;
    const char *first = p;
    for (*value = 0; is_digit(*p); p++) {
        if (p - first == most)
            return NULL;
        *value = *value * 10 + (*p - '0');
    }
    return p;
}

/* A whole number of up to 18 digits; NULL: something else. */
static const char *integer(const char *p, int64_t *value) {
    int negative = *p == '-';
    int64_t found;
    if (!(p = digits_end(p + negative, 18, &found)))
        return NULL;
    if (*p == '.' || (*p | 32) == 'e')
        return NULL;
    *value = negative ? -found : found;
    return p;
}

/* Microseconds with at most three decimals as nanoseconds; NULL: something else. */
static const char *time_ns(const char *p, int64_t *value) {
    int negative = *p == '-';
    int64_t found;
    if (!(p = digits_end(p + negative, 16, &found)))
        return NULL;
    if (found > MAX_US - 1)
        return NULL;
    int decimals = 0;
    if (*p == '.') {
        if (!is_digit(*++p))
            return NULL;
        for (; is_digit(*p); p++) {
            if (++decimals > 3)
                return NULL;
            found = found * 10 + (*p - '0');
        }
    }
    if ((*p | 32) == 'e')
        return NULL;
    for (; decimals < 3; decimals++)
        found *= 10;
    *value = negative ? -found : found;
    return p;
}

static int is_text(Slice key, const char *text, Py_ssize_t size) {
    return key.size == size && !memcmp(key.at, text, (size_t)size);
}

typedef struct {
    const char *start, *end;
    Slice phase, category, name, pid, tid, dims, types; /* without quotes but for pid, tid, dims, types */
    int64_t ts, dur, links[LINKS];
    int has_ts, has_dur, special;
} Event;

static int meaning_of(const Scanner *scanner, Slice key) {
    if (key.size > MAX_KEY_BYTES)
        return -1;
    for (int i = scanner->first_of_size[key.size]; i < scanner->key_count && scanner->keys[i].size == key.size; i++)
        if (!memcmp(scanner->keys[i].text, key.at, (size_t)key.size))
            return scanner->keys[i].meaning;
    return -1;
}

/* A quoted number, as ROCm writes some; other text (a pointer) is NONE. */
static int64_t number_in(Slice text) {
    int64_t value = 0;
    if (!text.size || text.size > 18)
        return NONE;
    for (Py_ssize_t i = 0; i < text.size; i++) {
        if (!is_digit(text.at[i]))
            return NONE;
        value = value * 10 + (text.at[i] - '0');
    }
    return value;
}

/* The value behind the key that begins at p; NULL: no key, or one with an escape. */
static const char *value_of(const char *p, const char *end, Slice *key) {
    if (*p != '"')
        return NULL;
    key->at = p + 1;
    if (!(p = string_end(p + 1, end)))
        return NULL;
    key->size = p - key->at;
    if (memchr(key->at, '\\', (size_t)key->size))
        return NULL;
    p = blank(p + 1);
    return *p == ':' ? blank(p + 1) : NULL;
}

static const char *arguments(const Scanner *scanner, const char *p, const char *end, Event *event) {
    p = blank(p + 1);
    if (*p == '}')
        return p + 1;
    for (;;) {
        Slice key;
        if (!(p = value_of(p, end, &key)))
            return NULL;
        const char *value = p;
        int meaning = meaning_of(scanner, key);
        if (meaning >= 0 && meaning < LINKS && (*p != '"' || !(scanner->may_be_text >> meaning & 1)))
            p = integer(p, &event->links[meaning]);
        else
            p = value_end(p, end, 0);
        if (!p)
            return NULL;
        if (meaning >= 0 && meaning < LINKS && *value == '"')
            event->links[meaning] = number_in((Slice){value + 1, p - value - 2});
        else if (meaning == DIMS)
            event->dims = (Slice){value, p - value};
        else if (meaning == TYPES)
            event->types = (Slice){value, p - value};
        else if (meaning == OTHER_KEY)
            event->special = 1;
        p = blank(p);
        if (*p == '}')
            return p + 1;
        if (*p != ',')
            return NULL;
        p = blank(p + 1);
    }
}

/* Behind the object that begins at p; NULL: to be read by Python. */
static const char *event_end(const Scanner *scanner, const char *p, const char *end, Event *event) {
    memset(event, 0, sizeof *event);
    for (int i = 0; i < LINKS; i++)
        event->links[i] = NONE;
    event->category.at = event->name.at = event->phase.at = event->pid.at = event->tid.at = "";
    event->dims.at = event->types.at = "";
    event->start = p;
    if (*p != '{')
        return NULL;
    p = blank(p + 1);
    if (*p == '}')
        return event->end = p + 1;
    for (;;) {
        Slice key, *text = NULL, *raw = NULL;
        if (!(p = value_of(p, end, &key)))
            return NULL;
        if (is_text(key, "ph", 2))
            text = &event->phase;
        else if (is_text(key, "cat", 3))
            text = &event->category;
        else if (is_text(key, "name", 4))
            text = &event->name;
        else if (is_text(key, "pid", 3))
            raw = &event->pid;
        else if (is_text(key, "tid", 3))
            raw = &event->tid;
        if (text) {
            if (*p != '"')
                return NULL;
            text->at = ++p;
            if (!(p = string_end(p, end)))
                return NULL;
            text->size = p++ - text->at;
        } else if (raw) {
            int64_t ignored;
            raw->at = p;
            p = *p == '"' ? value_end(p, end, 0) : integer(p, &ignored);
            if (!p)
                return NULL;
            raw->size = p - raw->at;
        } else if (is_text(key, "ts", 2)) {
            if (!(p = time_ns(p, &event->ts)))
                return NULL;
            event->has_ts = 1;
        } else if (is_text(key, "dur", 3)) {
            if (*p == '-' || !(p = time_ns(p, &event->dur)))
                return NULL;
            event->has_dur = 1;
        } else if (is_text(key, "args", 4)) {
            if (*p != '{' || !(p = arguments(scanner, p, end, event)))
                return NULL;
        } else if (!(p = value_end(p, end, 0)))
            return NULL;
        p = blank(p);
        if (*p == '}')
            return event->end = p + 1;
        if (*p != ',')
            return NULL;
        p = blank(p + 1);
    }
}

/* Where a text of at least three bytes stands next; NULL: nowhere. Sixteen bytes at a time: quotes are everywhere. */
static const char *found(const char *p, const char *end, const char *text, size_t size) {
    for (; (size_t)(end - p) >= size; p++) {
#ifdef __GNUC__
        while (end - p >= 18) {
            Sixteen first, second, third;
            uint64_t hits[2];
            memcpy(&first, p, 16);
            memcpy(&second, p + 1, 16);
            memcpy(&third, p + 2, 16);
            first = (Sixteen)(first == (unsigned char)text[0]) & (Sixteen)(second == (unsigned char)text[1]) &
                    (Sixteen)(third == (unsigned char)text[2]);
            memcpy(hits, &first, 16);
            if (hits[0] | hits[1])
                break;
            p += 16;
        }
#endif
        for (int i = 0; i < 16 && (size_t)(end - p) >= size; i++, p++)
            if (*p == *text && !memcmp(p, text, size))
                return p;
        p--;
    }
    return NULL;
}

static int is_unicode(Slice text) {
    PyObject *decoded = PyUnicode_DecodeUTF8(text.at, text.size, NULL);
    if (!decoded)
        PyErr_Clear();
    Py_XDECREF(decoded);
    return decoded != NULL;
}

/* 1: added; 0: to be read by Python; -1: no memory. */
static int add(Scanner *scanner, const Event *event, const char *text, size_t row) {
    const Slice nothing = {"", 0};
    int new_category, new_name, new_thread, new_shape;
    int64_t category = code_of(&scanner->categories, event->category, nothing, &new_category);
    int64_t name = code_of(&scanner->names, event->name, nothing, &new_name);
    int64_t thread = code_of(&scanner->threads, event->pid, event->tid, &new_thread);
    int64_t shape = NONE;
    if (event->dims.size && (shape = code_of(&scanner->shapes, event->dims, event->types, &new_shape)) < 0)
        return -1;
    if (category < 0 || name < 0 || thread < 0)
        return -1;
    if ((new_category && !is_unicode(event->category)) || (new_name && !is_unicode(event->name)) ||
        (new_thread && !(is_unicode(event->pid) && is_unicode(event->tid))))
        return 0;
    if (row == scanner->room) {
        size_t room = row ? row * 2 : 4096;
        for (int i = 0; i < COLUMNS; i++) {
            int64_t *grown = realloc(scanner->columns[i], room * sizeof *grown);
            if (!grown)
                return -1;
            scanner->columns[i] = grown;
        }
        scanner->room = room;
    }
    scanner->columns[TS][row] = event->ts;
    scanner->columns[DUR][row] = event->dur;
    scanner->columns[CATEGORY][row] = category;
    scanner->columns[NAME][row] = name;
    scanner->columns[THREAD][row] = thread;
    scanner->columns[SHAPE][row] = shape;
    for (int i = 0; i < LINKS; i++)
        scanner->columns[FIRST_LINK + i][row] = event->links[i];
    scanner->columns[START][row] = event->start - text;
    scanner->columns[END][row] = event->end - text;
    scanner->columns[SPECIAL][row] = event->special;
    return 1;
}

static PyObject *told(Table *table, int pairs) {
    PyObject *list = PyList_New(0);
    for (int64_t i = table->told; list && i < table->count; i++) {
        Entry *entry = &table->entries[i];
        const char *text = table->text + entry->offset;
        PyObject *item = pairs ? Py_BuildValue("(y#y#)", text, entry->first, text + entry->first, entry->second)
                               : PyBytes_FromStringAndSize(text, entry->first);
        if (!item || PyList_Append(list, item))
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static int refused(Scanner *scanner) {
    return forget_new(&scanner->categories) && forget_new(&scanner->names) && forget_new(&scanner->threads) &&
           forget_new(&scanner->shapes);
}

static PyObject *answer(Scanner *scanner, size_t rows, PyObject *others) {
    PyObject *columns = PyTuple_New(COLUMNS);
    for (int i = 0; columns && i < COLUMNS; i++) {
        const char *values = rows ? (const char *)scanner->columns[i] : "";
        PyObject *column = PyBytes_FromStringAndSize(values, (Py_ssize_t)(rows * sizeof(int64_t)));
        if (!column || PyTuple_SetItem(columns, i, column))
            Py_CLEAR(columns);
    }
    PyObject *categories = told(&scanner->categories, 0), *names = told(&scanner->names, 0);
    PyObject *threads = told(&scanner->threads, 1), *shapes = told(&scanner->shapes, 1), *all = NULL;
    if (columns && categories && names && threads && shapes) {
        all = PyTuple_Pack(6, columns, categories, names, threads, shapes, others);
        scanner->categories.told = scanner->categories.count;
        scanner->names.told = scanner->names.count;
        scanner->threads.told = scanner->threads.count;
        scanner->shapes.told = scanner->shapes.count;
    }
    Py_XDECREF(columns);
    Py_XDECREF(categories);
    Py_XDECREF(names);
    Py_XDECREF(threads);
    Py_XDECREF(shapes);
    return all;
}

/* The '{' of an event that begins `{"ph": "X", "cat"`, by where "cat" stands; NULL: it begins otherwise. */
static const char *event_start(const char *text, const char *p) {
    static const char *const before[] = {",", "\"X\"", ":", "\"ph\"", "{"};
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
        size_t size = strlen(before[i]);
        while (p > text && (p[-1] == ' ' || p[-1] == '\n' || p[-1] == '\t' || p[-1] == '\r'))
            p--;
        if ((size_t)(p - text) < size || memcmp(p - size, before[i], size))
            return NULL;
        p -= size;
    }
    return p;
}

/* Whether a category (with its quotes) is one of the list; `begins`: begins as one of it. */
static int is_in(PyObject *list, const char *category, int begins) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(list); i++) {
        char *text;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(list, i), &text, &size))
            return 0;
        if (!strncmp(category + 1, text, (size_t)size) && (begins || category[1 + size] == '"'))
            return 1;
    }
    return 0;
}

static PyObject *scan_device(PyObject *module, PyObject *args) {
    (void)module;
    static const char key[] = "\"cat\"", steps[] = "\"user_annotation\"", step[] = "ProfilerStep#";
    PyObject *capsule, *device, *unknown;
    char *text;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "Oy#O!O!", &capsule, &text, &size, &PyTuple_Type, &device, &PyTuple_Type, &unknown))
        return NULL;
    Scanner *scanner = PyCapsule_GetPointer(capsule, CAPSULE);
    if (!scanner)
        return NULL;
    const char *p = text, *end = text + size;
    size_t rows = 0;
    int good = 1;
    while (good == 1 && (p = found(p, end, key, sizeof key - 1))) {
        const char *at = p, *category = blank(p + sizeof key - 1);
        p += sizeof key - 1;
        if (*category != ':')
            continue; /* a value */
        category = blank(category + 1);
        int is_step = !strncmp(category, steps, sizeof steps - 1);
        if (*category != '"' || is_step + is_in(device, category, 0) == 0) {
            good = *category == '"' && !is_in(unknown, category, 1);
            continue;
        }
        Event event;
        const char *start = event_start(text, at);
        if (!start || !(p = event_end(scanner, start, end, &event)) || p > end || !event.has_ts || !event.has_dur) {
            good = 0;
            break;
        }
        if (is_step && (event.name.size < (Py_ssize_t)sizeof step - 1 || memcmp(event.name.at, step, sizeof step - 1)))
            continue;
        for (int i = 0; i < LINKS; i++)
            event.links[i] = NONE;
        event.dims.size = event.special = 0;
        good = add(scanner, &event, text, rows++);
    }
    if (PyErr_Occurred())
        return NULL;
    PyObject *others = PyList_New(0), *answered = NULL;
    if (others && good == 1)
        answered = answer(scanner, rows, others);
    else if (others && good == 0 && refused(scanner))
        answered = Py_NewRef(Py_None);
    else if (others)
        PyErr_NoMemory();
    Py_XDECREF(others);
    return answered;
}

static PyObject *scan(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *capsule;
    char *text;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "Oy#", &capsule, &text, &size))
        return NULL;
    Scanner *scanner = PyCapsule_GetPointer(capsule, CAPSULE);
    PyObject *others = scanner ? PyList_New(0) : NULL;
    if (!others)
        return NULL;
    const char *p = blank(text), *end = text + size;
    size_t rows = 0;
    int good = 1;
    while (p < end) {
        Event event;
        if (!(p = event_end(scanner, p, end, &event)) || p > end) {
            good = 0;
            break;
        }
        int is_span = event.has_ts && event.has_dur && is_text(event.phase, "X", 1);
        int is_flow = event.phase.size == 1 && strchr("stf", event.phase.at[0]);
        if (is_span) {
            good = add(scanner, &event, text, rows);
            if (good != 1)
                break;
            rows++;
        } else if (!is_flow) {
            PyObject *other = PyBytes_FromStringAndSize(event.start, event.end - event.start);
            if (!other || PyList_Append(others, other)) {
                Py_XDECREF(other);
                Py_DECREF(others);
                return NULL;
            }
            Py_DECREF(other);
        }
        p = blank(p);
        if (p == end)
            break;
        if (*p != ',') {
            good = 0;
            break;
        }
        p = blank(p + 1);
        if (p >= end)
            good = 0; /* a comma that nothing follows */
    }
    PyObject *found = NULL;
    if (good == 1)
        found = answer(scanner, rows, others);
    else if (good < 0 || !refused(scanner))
        PyErr_NoMemory();
    else
        found = Py_NewRef(Py_None);
    Py_DECREF(others);
    return found;
}

static void freed_table(Table *table) {
    free(table->entries);
    free(table->slots);
    free(table->text);
}

static void freed(PyObject *capsule) {
    Scanner *scanner = PyCapsule_GetPointer(capsule, CAPSULE);
    if (!scanner)
        return;
    freed_table(&scanner->categories);
    freed_table(&scanner->names);
    freed_table(&scanner->threads);
    freed_table(&scanner->shapes);
    for (int i = 0; i < COLUMNS; i++)
        free(scanner->columns[i]);
    free(scanner);
}

/* keys: (text, meaning) of args, ascending by size: 0 to 5 a link, then dims, types, and what Python is to look at. */
static PyObject *scanner(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *keys;
    int may_be_text;
    if (!PyArg_ParseTuple(args, "O!i", &PyList_Type, &keys, &may_be_text))
        return NULL;
    Scanner *made = calloc(1, sizeof *made);
    if (!made)
        return PyErr_NoMemory();
    made->may_be_text = may_be_text;
    for (Py_ssize_t i = 0; i < PyList_Size(keys); i++) {
        char *text;
        Py_ssize_t size;
        int meaning;
        if (!PyArg_ParseTuple(PyList_GetItem(keys, i), "y#i", &text, &size, &meaning) || size > MAX_KEY_BYTES ||
            made->key_count == MAX_KEYS) {
            free(made);
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "too many keys, or one that is too long");
            return NULL;
        }
        memcpy(made->keys[made->key_count].text, text, (size_t)size);
        made->keys[made->key_count].size = (int)size;
        made->keys[made->key_count++].meaning = meaning;
    }
    for (int size = 0, i = 0; size <= MAX_KEY_BYTES; size++) {
        while (i < made->key_count && made->keys[i].size < size)
            i++;
        made->first_of_size[size] = i;
    }
    PyObject *capsule = PyCapsule_New(made, CAPSULE, freed);
    if (!capsule)
        free(made);
    return capsule;
}

static PyMethodDef methods[] = {
    {"scanner", scanner, METH_VARARGS, "A scanner for the blocks of one file; its codes go on from block to block."},
    {"scan", scan, METH_VARARGS, "Columns, new categories, names, threads, shapes, and other events; None: refused."},
    {"scan_device", scan_device, METH_VARARGS, "As scan, of the events of some categories and the profiler's steps alone."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_event_scan", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__event_scan(void) { return PyModule_Create(&definition); }
