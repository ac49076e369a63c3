// One token of each lane through a whole stack of Transformer-XL layers, in one call and one region of threads.
//
// Letters: B lanes, P places for them (`linear.hpp`), N layers, H heads, D head width, C width, F width of the feed-forward layer.
// Between barriers each thread computes a share of the outputs (linear layers) or of the heads (attention). Residuals and
// norms are computed by every thread for itself: that takes less time than waiting.

#include <new>
#include <vector>

#include "attend.hpp"
#include "linear.hpp"
#include "norm.hpp"

namespace segue {

// The structures below are those of segue/nn/native_step.py.
template <typename Real>
struct Layer {
    Weights<Real> query, key_value, out, inner, outer;
    Norm<Real> attention_norm, feed_forward_norm;
    Relative<Real> relative;
};

template <typename Real>
struct Stack {
    const Layer<Real>* layers;
    int64_t count, width, heads, head_width, feedforward, pre;
    double scale;
};

// A lane's keys and values lie in a buffer (N, 2, B, H, capacity, D).
struct Lane {
    char* rows;  // of layer 0: its keys of head 0, row 0
    int64_t layer_stride, half_stride, head_stride;  // in bytes
    int64_t slot;   // the row to be written
    int64_t count;  // keys that are seen, the new one among them
};

template <typename Real>
struct Tokens {
    Real* hidden;         // (B, C) in and out
    const Real* added;    // (N, B, C): what positions add to each layer's inputs; null: nothing
    const Real* cosines;  // (B, D / 2) of rotary positions; null: none
    const Real* sines;
    const Lane* lanes;
    int64_t count;
    Stored stored;  // how keys and values are
};

template <typename Real>
inline void turn(Real* vector, int64_t size, const Real* cosines, const Real* sines) {
    const int64_t half = size / 2;
    for (int64_t i = 0; i < half; i++) {
        const Real first = vector[i], second = vector[half + i];
        vector[i] = first * cosines[i] - second * sines[i];
        vector[half + i] = second * cosines[i] + first * sines[i];
    }
}

// What threads share, and what each has for itself.
template <typename Real>
struct Workspace {
    int64_t places;                                                 // P
    std::vector<Real> queries, keys_values, gathered, outputs, fed;  // (features, P)
    struct Own {
        std::vector<Real> hidden, inputs;  // (C, P)
        std::vector<Real> heads_values;    // (B, 4, D): scaled query with either bias, key and value of one head
        std::vector<Real> scores;          // (keys of all lanes)
        std::vector<Step> steps;
        std::vector<float> largest;
        std::vector<LaneHead<Real>> heads;
    };
    std::vector<Own> own;

    Workspace(const Stack<Real>& stack, const Tokens<Real>& tokens, int threads) : own(threads) {
        const int64_t lanes = tokens.count, inside = stack.heads * stack.head_width, width = stack.width;
        places = lanes == 1 ? 1 : (lanes + WIDTH<Real> - 1) / WIDTH<Real> * WIDTH<Real>;
        int64_t keys = 0;
        for (int64_t lane = 0; lane < lanes; lane++) keys += tokens.lanes[lane].count;
        queries.resize(places * inside);
        keys_values.resize(places * 2 * inside);
        gathered.resize(places * inside);
        outputs.resize(places * width);
        fed.resize(places * stack.feedforward);
        for (Own& one : own) {
            one.hidden.resize(width * places);
            for (int64_t b = 0; b < lanes; b++)
                for (int64_t i = 0; i < width; i++) one.hidden[i * places + b] = tokens.hidden[b * width + i];
            one.inputs.resize(width * places);
            one.heads_values.resize(lanes * 4 * stack.head_width);
            one.scores.resize(keys);
            one.heads.resize(lanes);
            if (!stack.layers[0].query.rounded) continue;
            one.steps.resize(places * (std::max({width, inside, stack.feedforward}) + FOUR));
            one.largest.resize(places);
        }
    }
};

// Attention of one head: writes the new keys and values of some lanes and gathers what they see.
template <typename Real, typename Cell>
inline void attend_head(const Stack<Real>& stack, int64_t number, const Tokens<Real>& tokens, Workspace<Real>& space,
                        typename Workspace<Real>::Own& own, int64_t head, const Share& lanes) {
    const Layer<Real>& layer = stack.layers[number];
    const int64_t size = stack.head_width, inside = stack.heads * size, places = space.places;
    const Real scale = Real(stack.scale);
    const Real* u = layer.relative.content_bias ? layer.relative.content_bias + head * size : nullptr;
    const Real* v = layer.relative.position_bias ? layer.relative.position_bias + head * size : nullptr;
    const int64_t row = Rows<Cell>::pitch(size);
    Real* scores = own.scores.data();
    for (int64_t b = lanes.first; b < lanes.last; b++) {
        const Lane& lane = tokens.lanes[b];
        Real *content = own.heads_values.data() + b * 4 * size, *position = content + size;
        Real *key = position + size, *value = key + size;
        for (int64_t i = 0; i < size; i++) {
            content[i] = space.queries[(head * size + i) * places + b];
            key[i] = space.keys_values[(head * size + i) * places + b];
            value[i] = space.keys_values[(inside + head * size + i) * places + b];
        }
        if (tokens.cosines) {
            const int64_t place = b * (size / 2);
            turn(content, size, tokens.cosines + place, tokens.sines + place);
            turn(key, size, tokens.cosines + place, tokens.sines + place);
        }
        for (int64_t i = 0; i < size; i++) {
            position[i] = scale * (v ? content[i] + v[i] : content[i]);
            content[i] = scale * (u ? content[i] + u[i] : content[i]);
        }
        const int64_t place = number * lane.layer_stride + head * lane.head_stride;
        Cell* keys = reinterpret_cast<Cell*>(lane.rows + place);
        Cell* values = reinterpret_cast<Cell*>(lane.rows + place + lane.half_stride);
        Rows<Cell>::write(key, size, keys + lane.slot * row);
        Rows<Cell>::write(value, size, values + lane.slot * row);
        const int64_t first = (lane.slot + 1 - lane.count) * row;
        own.heads[b] = {keys + first, values + first, lane.count, content, position, scores, key};
        scores += lane.count;
    }
    attend<Real, Cell>(layer.relative, head, size, scale, own.heads.data() + lanes.first, lanes.last - lanes.first);
    for (int64_t b = lanes.first; b < lanes.last; b++)
        for (int64_t i = 0; i < size; i++)
            space.gathered[(head * size + i) * places + b] = own.heads[b].gathered[i];
}

template <typename Real, typename Cell>
void run(const Stack<Real>& stack, const Tokens<Real>& tokens, Workspace<Real>& space) {
    typename Workspace<Real>::Own& own = space.own[omp_get_thread_num()];
    const int64_t lanes = tokens.count, places = space.places, width = stack.width;
    Real* hidden = own.hidden.data();
    Real* inputs = stack.pre ? own.inputs.data() : hidden;  // of attention and feed-forward
    // Lanes of a head stay together as long as there are heads for all threads: they share its relative keys.
    const int64_t groups = std::min<int64_t>(lanes, (omp_get_num_threads() + stack.heads - 1) / stack.heads);
    const RoundedInputs rounded{own.steps.data(), own.largest.data()};
    const auto add = [&](const std::vector<Real>& more) {
        for (int64_t i = 0; i < width * places; i++) hidden[i] += more[i];
    };
    for (int64_t number = 0; number < stack.count; number++) {
        const Layer<Real>& layer = stack.layers[number];
        if (tokens.added)
            for (int64_t b = 0; b < lanes; b++)
                for (int64_t i = 0; i < width; i++)
                    hidden[i * places + b] += tokens.added[(number * lanes + b) * width + i];
        if (stack.pre) normed(layer.attention_norm, hidden, width, places, inputs);
        linear(layer.query, inputs, lanes, places, space.queries.data(), rounded);
        linear(layer.key_value, inputs, lanes, places, space.keys_values.data(), rounded);
#pragma omp barrier
        const Share mine(stack.heads * groups);
        for (int64_t item = mine.first; item < mine.last; item++) {
            const Share some(lanes, 1, int(item % groups), int(groups));
            attend_head<Real, Cell>(stack, number, tokens, space, own, item / groups, some);
        }
#pragma omp barrier
        linear(layer.out, space.gathered.data(), lanes, places, space.outputs.data(), rounded);
#pragma omp barrier
        add(space.outputs);
        normed(stack.pre ? layer.feed_forward_norm : layer.attention_norm, hidden, width, places, inputs);
        linear(layer.inner, inputs, lanes, places, space.fed.data(), rounded, true);
#pragma omp barrier
        linear(layer.outer, space.fed.data(), lanes, places, space.outputs.data(), rounded);
#pragma omp barrier
        add(space.outputs);
        if (!stack.pre) normed(layer.feed_forward_norm, hidden, width, places, hidden);
    }
}

template <typename Real>
int32_t step(const Stack<Real>* stack, const Tokens<Real>* tokens, int32_t threads) {
    try {
        Workspace<Real> space(*stack, *tokens, threads);
#pragma omp parallel num_threads(threads)
        {
            if (tokens->stored == Stored::EXACT) run<Real, Real>(*stack, *tokens, space);
            if (tokens->stored == Stored::FLOAT16) run<Real, Float16>(*stack, *tokens, space);
            if (tokens->stored == Stored::INT8) run<Real, int8_t>(*stack, *tokens, space);
        }
        for (int64_t b = 0; b < tokens->count; b++)
            for (int64_t i = 0; i < stack->width; i++)
                tokens->hidden[b * stack->width + i] = space.own[0].hidden[i * space.places + b];
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

}  // namespace segue

// 0, or 1 if there is not enough memory: then nothing was written.
SEGUE_EXPORT int32_t segue_step_float(const void* stack, const void* tokens, int32_t threads) {
    return segue::step(static_cast<const segue::Stack<float>*>(stack),
                       static_cast<const segue::Tokens<float>*>(tokens), threads);
}

SEGUE_EXPORT int32_t segue_step_double(const void* stack, const void* tokens, int32_t threads) {
    return segue::step(static_cast<const segue::Stack<double>*>(stack),
                       static_cast<const segue::Tokens<double>*>(tokens), threads);
}
