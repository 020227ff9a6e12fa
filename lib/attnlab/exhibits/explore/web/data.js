// What was packed, unpacked and indexed.

// As in samples.py.
const STEPS = 4095;
const THROTTLED = 32768;

async function unpack(payload) {
  const bytes = new Uint8Array(payload.buffer, payload.byteOffset, payload.byteLength);
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const raw = await new Response(plain).arrayBuffer();
  const length = new DataView(raw).getUint32(0, true);
  const data = JSON.parse(new TextDecoder().decode(new Uint8Array(raw, 4, length)));
  let offset = 4 + length;
  const planes = (count) => {
    const [low, high] = [new Uint8Array(raw, offset, count), new Uint8Array(raw, offset + count, count)];
    offset += 2 * count;
    return Uint16Array.from(low, (value, place) => value + 256 * high[place]);
  };
  data.runs.forEach((run, place) => {
    const { cases, count, ...said } = data.samples[place];
    index(run, Object.assign(said, { codes: planes(count), clocks: planes(count) }), cases);
  });
  return data;
}

// What is looked up of a run: cases, verdicts and samples, by the places of timing, shape and implementation.
function index(run, samples, cases) {
  const key = (columns, row) => `${columns.timing[row]}/${columns.shape[row]}/${columns.implementation[row]}`;
  run.sampled = samples;
  run.caseAt = new Map((run.cases.timing ?? []).map((_, row) => [key(run.cases, row), row]));
  run.verdictAt = {};
  for (const [baseline, { titles, statements, ...columns }] of Object.entries(run.verdicts)) {
    const row = (place) => Object.fromEntries(Object.entries(columns).map(([field, values]) => [field, values[place]]));
    run.verdictAt[baseline] = new Map(columns.case?.map((of, place) => [of, row(place)]));
  }
  run.samplesAt = new Map();
  let first = 0;
  cases.timing.forEach((_, row) => {
    const sizes = cases.sizes[row];
    run.samplesAt.set(key(cases, row), {
      first,
      sizes,
      low: cases.low_us[row],
      span: cases.span[row],
      seconds: cases.seconds[row],
    });
    first += sizes.reduce((sum, size) => sum + size, 0);
  });
  run.absentAt = new Map(run.absent.map(([shape, implementation, why]) => [`${shape}/${implementation}`, why]));
  run.shapeAt = new Map(run.shapes.map((shape, place) => [shape.name, place]));
  const alike = {};
  const plainly = run.shapes.map((shape) => JSON.stringify({ ...shape, name: "", label: "", values: "" }));
  for (const [place, { values }] of run.shapes.entries())
    if (values !== "zeros") (alike[plainly[place]] ??= []).push(place);
  // The shapes that differ from one in values alone, itself among them; zeros are no such kind.
  run.kindsAt = run.shapes.map((_, place) => alike[plainly[place]] ?? [place]);
  run.along = Object.fromEntries(
    Object.keys(AXES).map((axis) => [axis, run.shapes.map((shape) => alongside(run, shape, axis))]),
  );
  // First what the ladder comes to, then the fastest at the target: of many columns, the last are out of sight.
  const median = (name) => run.cases.latency?.[run.caseAt.get(`0/${run.target}/${run.implementations.indexOf(name)}`)];
  const rank = (name) => (name === `${OURS}best` ? 0 : (median(name) ?? Infinity));
  run.ordered = run.implementations.toSorted((one, other) => (rank(one) < rank(other) ? -1 : rank(one) > rank(other)));
  const varied = Object.keys(AXES).filter((axis) => run.along[axis].some((places) => places.length > 1));
  run.axes = varied.length ? varied : ["seq_len"];
}

// The samples of a case, a list for each replicate: latencies in µs, and SM clocks.
function samplesOf(run, timing, shape, implementation) {
  const found = run.samplesAt.get(`${timing}/${shape}/${implementation}`);
  if (!found) return [];
  let first = found.first;
  return found.sizes.map((size, place) => {
    const codes = run.sampled.codes.subarray(first, first + size),
      clocks = run.sampled.clocks.subarray(first, first + size);
    first += size;
    return {
      latencies: Array.from(codes, (code) => found.low * Math.exp((code / STEPS) * found.span)),
      clocks,
      seconds: found.seconds[place],
    };
  });
}
