// One token of each lane through the decoder of an encoder-decoder Transformer, in one call and one region of threads.
//
// Lanes share rows: a table tells for each lane which rows of the KV cache are its past, and which sentence is its
// source. So beams change places without a copy. Between barriers each thread computes a share of the outputs (linear
// layers) or of groups of lanes and heads (attention). Residuals and norms are computed by every thread for itself.
//
// Letters: B lanes, P places for them (`linear.hpp`), N layers, H heads, D head width, C width, R rows of the KV cache,
// L keys of a lane's past, the new one among them, G lanes that are attended for together.

#include <new>
#include <vector>

#include "gathering.hpp"
#include "linear.hpp"
#include "norm.hpp"
#include "product.hpp"

namespace segue {
namespace {

// The structures below are those of segue/nn/native_decoder.py.
template <typename Real>
struct DecoderLayer {
    Weights<Real> query, key_value, out, cross_query, cross_out, inner, outer;
    Norm<Real> attention_norm, cross_norm, feed_forward_norm;
};

template <typename Real>
struct Decoder {
    const DecoderLayer<Real>* layers;
    int64_t count, width, heads, head_width, feedforward, pre;
    double scale;
    Norm<Real> last_norm;  // its weight is null: none
};

// Keys and values of all sentences for one layer: `stride` numbers from a sentence's key to its next.
template <typename Real>
struct SourceKeys {
    const Real *keys, *values;
    int64_t stride;
};

template <typename Real>
struct Targets {
    Real* hidden;           // (B, C) in and out
    Real* rows;             // (N, 2, R, H D)
    const int64_t* table;   // (B, L) rows of each lane's past; the last one is written
    const SourceKeys<Real>* sources;  // (N)
    const int64_t* firsts;  // (B) where the keys of each lane's sentence begin
    const int64_t* counts;  // (B) how many they are
    int64_t lanes, keys, capacity, longest;  // B, L, R and the largest of the counts
};

// What threads share, and what each has for itself.
template <typename Real>
struct Room {
    int64_t places;                                                  // P
    std::vector<Real> queries, keys_values, gathered, outputs, fed;  // (features, P)
    struct Own {
        std::vector<Real> hidden, inputs;  // (C, P)
        std::vector<Real> some, fetched;   // (G, D): of one head of some lanes
        std::vector<Real> scores;
    };
    std::vector<Own> own;

    int64_t group() const { return places == 1 ? 1 : WIDTH<Real>; }  // G lanes that are computed together

    Room(const Decoder<Real>& decoder, const Targets<Real>& targets, int threads) : own(threads) {
        const int64_t lanes = targets.lanes, inside = decoder.heads * decoder.head_width, width = decoder.width;
        places = lanes == 1 ? 1 : (lanes + WIDTH<Real> - 1) / WIDTH<Real> * WIDTH<Real>;
        queries.resize(places * inside);
        keys_values.resize(places * 2 * inside);
        gathered.resize(places * inside);
        outputs.resize(places * width);
        fed.resize(places * decoder.feedforward);
        for (Own& one : own) {
            one.hidden.resize(width * places);
            for (int64_t b = 0; b < lanes; b++)
                for (int64_t i = 0; i < width; i++) one.hidden[i * places + b] = targets.hidden[b * width + i];
            one.inputs.resize(width * places);
            one.some.resize(group() * decoder.head_width);
            one.fetched.resize(group() * decoder.head_width);
            one.scores.resize(std::max(targets.keys, targets.longest));
        }
    }
};

// Numbers (size, P) of some neighbouring lanes as rows of each lane (G, size), and back; G is a vector's width, or 1.
template <typename Real>
inline void to_rows(const Real* features, int64_t places, int64_t size, Real* rows) {
    constexpr int width = WIDTH<Real>;
    if (places == 1) return copy(features, size, rows);
    int64_t i = 0;
    for (; i + width <= size; i += width) transpose<Real>(features + i * places, places, rows + i, size);
    for (; i < size; i++)
        for (int l = 0; l < width; l++) rows[l * size + i] = features[i * places + l];
}

template <typename Real>
inline void from_rows(const Real* rows, int64_t places, int64_t size, Real* features) {
    constexpr int width = WIDTH<Real>;
    if (places == 1) return copy(rows, size, features);
    int64_t i = 0;
    for (; i + width <= size; i += width) transpose<Real>(rows + i, size, features + i * places, places);
    for (; i < size; i++)
        for (int l = 0; l < width; l++) features[i * places + l] = rows[l * size + i];
}

// One head of a group of lanes.
struct Group {
    int64_t head, first, last;
};

template <typename Real>
struct Run {
    const Decoder<Real>& decoder;
    const Targets<Real>& targets;
    Room<Real>& room;
    typename Room<Real>::Own& own;

    // Calls `attend` for this thread's share of the groups of lanes and heads.
    template <typename Attend>
    void share_groups(Attend attend) {
        const int64_t size = room.group(), groups = (targets.lanes + size - 1) / size;
        const Share mine(groups * decoder.heads);
        for (int64_t item = mine.first; item < mine.last; item++) {
            const int64_t first = item / decoder.heads * size;
            attend(Group{item % decoder.heads, first, std::min(first + size, targets.lanes)});
        }
    }

    // Where a group's numbers begin in (features, P), of which the head's are some.
    Real* part(std::vector<Real>& features, const Group& group, int64_t before = 0) {
        return features.data() + (before + group.head * decoder.head_width) * room.places + group.first;
    }

    // Writes new keys (or values) of a group to their rows.
    void write(const Real* features, const Group& group, Real* rows) {
        const int64_t size = decoder.head_width, inside = decoder.heads * size;
        to_rows(features, room.places, size, own.some.data());
        for (int64_t b = group.first; b < group.last; b++) {
            const int64_t row = targets.table[(b + 1) * targets.keys - 1];
            copy(own.some.data() + (b - group.first) * size, size, rows + row * inside + group.head * size);
        }
    }

    // Attention of a group, each lane to what `seen` gives for it.
    template <typename Seen>
    void attend(const Group& group, Seen seen) {
        const int64_t size = decoder.head_width;
        to_rows(part(room.queries, group), room.places, size, own.some.data());
        for (int64_t b = group.first; b < group.last; b++) {
            const int64_t place = (b - group.first) * size;
            attend_scattered(seen(b), own.some.data() + place, size, Real(decoder.scale), own.scores.data(),
                             own.fetched.data() + place);
        }
        from_rows(own.fetched.data(), room.places, size, part(room.gathered, group));
    }

    // Self-attention: new keys and values go to their rows first.
    void attend_past(int64_t number) {
        const int64_t inside = decoder.heads * decoder.head_width;
        Real* keys = targets.rows + number * 2 * targets.capacity * inside;
        Real* values = keys + targets.capacity * inside;
        share_groups([&](const Group& group) {
            write(part(room.keys_values, group), group, keys);
            write(part(room.keys_values, group, inside), group, values);
            const int64_t place = group.head * decoder.head_width;
            attend(group, [&](int64_t b) {
                const int64_t* table = targets.table + b * targets.keys;
                const auto rows = [=](int64_t key) { return table[key] * inside; };
                return Scattered<Real, decltype(rows)>{keys + place, values + place, rows, targets.keys};
            });
        });
    }

    void attend_source(int64_t number) {
        const SourceKeys<Real>& source = targets.sources[number];
        share_groups([&](const Group& group) {
            attend(group, [&](int64_t b) {
                const int64_t stride = source.stride, place = targets.firsts[b] + group.head * decoder.head_width;
                const auto rows = [=](int64_t key) { return key * stride; };
                return Scattered<Real, decltype(rows)>{source.keys + place, source.values + place, rows,
                                                       targets.counts[b]};
            });
        });
    }

    // This thread's share of a linear layer's outputs.
    void linear_part(const Weights<Real>& weights, const Real* inputs, std::vector<Real>& outputs, bool relu = false) {
        linear(weights, inputs, targets.lanes, room.places, outputs.data(), RoundedInputs{nullptr, nullptr}, relu);
    }

    // All outputs of a linear layer: every thread's share is there when it returns.
    void linear_layer(const Weights<Real>& weights, const Real* inputs, std::vector<Real>& outputs, bool relu = false) {
        linear_part(weights, inputs, outputs, relu);
#pragma omp barrier
    }

    // The residual connection, and what the next part sees: normed by its own norm, or by the one behind the last part.
    void add(const Norm<Real>& behind, const Norm<Real>* before, Real* hidden, Real* inputs) {
        for (int64_t i = 0; i < decoder.width * room.places; i++) hidden[i] += room.outputs[i];
        if (!decoder.pre) normed(behind, hidden, decoder.width, room.places, hidden);
        if (decoder.pre && before) normed(*before, hidden, decoder.width, room.places, inputs);
    }

    void all_layers() {
        Real* hidden = own.hidden.data();
        Real* inputs = decoder.pre ? own.inputs.data() : hidden;
        if (decoder.pre) normed(decoder.layers[0].attention_norm, hidden, decoder.width, room.places, inputs);
        for (int64_t number = 0; number < decoder.count; number++) {
            const DecoderLayer<Real>& layer = decoder.layers[number];
            const bool last = number + 1 == decoder.count;
            linear_part(layer.query, inputs, room.queries);
            linear_layer(layer.key_value, inputs, room.keys_values);
            attend_past(number);
#pragma omp barrier
            linear_layer(layer.out, room.gathered.data(), room.outputs);
            add(layer.attention_norm, &layer.cross_norm, hidden, inputs);
            linear_layer(layer.cross_query, inputs, room.queries);
            attend_source(number);
#pragma omp barrier
            linear_layer(layer.cross_out, room.gathered.data(), room.outputs);
            add(layer.cross_norm, &layer.feed_forward_norm, hidden, inputs);
            linear_layer(layer.inner, inputs, room.fed, true);
            linear_layer(layer.outer, room.fed.data(), room.outputs);
            add(layer.feed_forward_norm, last ? nullptr : &decoder.layers[number + 1].attention_norm, hidden, inputs);
        }
        if (decoder.last_norm.weight) normed(decoder.last_norm, hidden, decoder.width, room.places, hidden);
    }
};

template <typename Real>
int32_t decode(const Decoder<Real>* decoder, const Targets<Real>* targets, int32_t threads) {
    try {
        Room<Real> room(*decoder, *targets, threads);
#pragma omp parallel num_threads(threads)
        Run<Real>{*decoder, *targets, room, room.own[omp_get_thread_num()]}.all_layers();
        for (int64_t b = 0; b < targets->lanes; b++)
            for (int64_t i = 0; i < decoder->width; i++)
                targets->hidden[b * decoder->width + i] = room.own[0].hidden[i * room.places + b];
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

}  // namespace
}  // namespace segue

// 0, or 1 if there is not enough memory: then nothing was written.
SEGUE_EXPORT int32_t segue_decode_float(const void* decoder, const void* targets, int32_t threads) {
    return segue::decode(static_cast<const segue::Decoder<float>*>(decoder),
                         static_cast<const segue::Targets<float>*>(targets), threads);
}

SEGUE_EXPORT int32_t segue_decode_double(const void* decoder, const void* targets, int32_t threads) {
    return segue::decode(static_cast<const segue::Decoder<double>*>(decoder),
                         static_cast<const segue::Targets<double>*>(targets), threads);
}
