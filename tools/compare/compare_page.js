// Draws the curves of runs from the element `data`, one chart for each value that a run has.
(() => {
  'use strict';
  const data = JSON.parse(document.getElementById('data').textContent);
  const WIDTH = 640, HEIGHT = 250, LEFT = 58, RIGHT = 10, TOP = 8, BELOW = 24, COLORS = 8;
  const charts = document.getElementById('charts');
  const controls = document.getElementById('controls');
  const values = [
    { key: 'loss', name: 'Loss of training', loss: true, smooth: true },
    { key: 'eval_loss', name: 'Loss of evaluations', loss: true, points: true },
    { key: 'learning_rate', name: 'Learning rate' },
    { key: 'grad_norm', name: 'Norm of the gradient', smooth: true },
    { key: 'tokens_per_second', name: 'Tokens a second', smooth: true },
  ];
  const color = (run) => 'var(--run-' + run % COLORS + ')';
  const dash = (run) => run < COLORS ? '' : '6 4';
  const shown = () => data.runs.map((_, run) => document.querySelector('input[data-run="' + run + '"]').checked);
  document.querySelectorAll('tr[data-run]').forEach((row) => {
    row.querySelector('label i').style.background = color(Number(row.dataset.run));
  });

  // ---- numbers ---------------------------------------------------------------------------------
  const short = (x) => x === 0 ? '0' : Math.abs(x) >= 1e9 ? +(x / 1e9).toPrecision(4) + ' G'
    : Math.abs(x) >= 1e6 ? +(x / 1e6).toPrecision(4) + ' M' : Math.abs(x) >= 1e4 ? +(x / 1e3).toPrecision(4) + ' k'
      : Math.abs(x) < 1e-3 ? x.toExponential(2) : String(+x.toPrecision(5));
  const time = (s) => s >= 7200 ? +(s / 3600).toPrecision(4) + ' h' : s >= 120 ? +(s / 60).toPrecision(4) + ' min'
    : +s.toPrecision(3) + ' s';
  const along = () => controls.elements.along.value;
  const place = (x) => along() === 'seconds' ? time(x) : short(x);
  // Exponential, without a bias towards the first value.
  const smoothed = (ys, share) => {
    let sum = 0, weight = 0;
    return ys.map((y) => {
      if (y === null) return null;
      sum = share * sum + (1 - share) * y;
      weight = share * weight + (1 - share);
      return sum / weight;
    });
  };
  const ticks = (low, high, count) => {
    const rough = (high - low) / count, power = Math.pow(10, Math.floor(Math.log10(rough)));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) || rough, out = [];
    for (let t = Math.ceil(low / step) * step; t <= high + step * 1e-9; t += step) out.push(t);
    return out;
  };

  // ---- one chart -------------------------------------------------------------------------------
  const series = (value) => data.runs.map((run, i) => {
    const evals = value.points;
    const xs = evals ? run.evals.map((e) => e[along()]) : run.points[along()];
    const ys = evals ? run.evals.map((e) => e.eval_loss) : run.points[value.key];
    return { run: i, xs, raw: ys, ys: value.smooth ? smoothed(ys, Number(controls.elements.smoothing.value)) : ys };
  });
  const svg = (name, attributes, text) => {
    const element = document.createElementNS('http://www.w3.org/2000/svg', name);
    Object.entries(attributes).forEach(([key, given]) => element.setAttribute(key, given));
    if (text !== undefined) element.textContent = text;
    return element;
  };
  // The middle of what is drawn decides the range, so that a single step cannot flatten all others.
  const range = (lines, log) => {
    const all = lines.flatMap((line) => line.ys).filter((y) => y !== null && (!log || y > 0)).sort((a, b) => a - b);
    if (all.length === 0) return null;
    const cut = all.length > 40 ? Math.floor(all.length * 0.005) : 0;
    let low = all[cut], high = all[all.length - 1 - cut];
    if (low === high) { low -= Math.abs(low) * 0.05 + 1e-12; high += Math.abs(high) * 0.05 + 1e-12; }
    return log ? [Math.log10(low), Math.log10(high)] : [low - (high - low) * 0.03, high + (high - low) * 0.03];
  };
  const path = (line, ys, toX, toY) => {
    let text = '', pen = false;
    line.xs.forEach((x, i) => {
      const y = ys[i] === null ? NaN : toY(ys[i]);
      if (!Number.isFinite(y)) { pen = false; return; }
      text += (pen ? 'L' : 'M') + toX(x).toFixed(1) + ' ' + y.toFixed(1);
      pen = true;
    });
    return text;
  };
  const axes = (root, toX, toY, xs, ys, log) => {
    ticks(ys[0], ys[1], 5).forEach((t) => {
      const y = toY(log ? Math.pow(10, t) : t);
      root.append(svg('line', { class: 'grid', x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y }),
        svg('text', { x: LEFT - 8, y: y + 4, 'text-anchor': 'end' }, short(+(log ? Math.pow(10, t) : t).toPrecision(4))));
    });
    const unit = along() === 'seconds' ? (xs[1] >= 7200 ? 3600 : xs[1] >= 120 ? 60 : 1) : 1;
    ticks(xs[0] / unit, xs[1] / unit, 6).forEach((t) => {
      const x = toX(t * unit);
      root.append(svg('text', { x, y: HEIGHT - 6, 'text-anchor': x > WIDTH - 40 ? 'end' : 'middle' }, place(t * unit)));
    });
  };
  const nearest = (xs, x) => {
    let best = 0;
    xs.forEach((each, i) => { if (Math.abs(each - x) < Math.abs(xs[best] - x)) best = i; });
    return best;
  };
  const follow = (box, root, lines, xs, toX, value) => {
    const cross = svg('line', { class: 'cross', y1: TOP, y2: HEIGHT - BELOW, visibility: 'hidden' });
    const tip = document.createElement('div');
    tip.className = 'tip';
    tip.hidden = true;
    root.append(cross);
    box.append(tip);
    const leave = () => { tip.hidden = true; cross.setAttribute('visibility', 'hidden'); };
    root.addEventListener('pointerleave', leave);
    root.addEventListener('pointermove', (event) => {
      const rect = root.getBoundingClientRect(), at = (event.clientX - rect.left) / rect.width * WIDTH;
      if (at < LEFT || at > WIDTH - RIGHT) { leave(); return; }
      const x = xs[0] + (at - LEFT) / (WIDTH - LEFT - RIGHT) * (xs[1] - xs[0]);
      cross.setAttribute('x1', at); cross.setAttribute('x2', at); cross.setAttribute('visibility', 'visible');
      tip.replaceChildren(...lines.map((line) => {
        const i = nearest(line.xs, x), row = document.createElement('div'), mark = document.createElement('i');
        mark.style.background = color(line.run);
        row.append(mark, data.runs[line.run].label + ' at ' + place(line.xs[i]) + ': ',
          Object.assign(document.createElement('b'), { textContent: line.raw[i] === null ? 'none' : short(line.raw[i]) }));
        return row;
      }));
      tip.hidden = false;
      const left = (event.clientX - rect.left) > rect.width / 2;
      tip.style.left = left ? 'auto' : (event.clientX - rect.left + 14) + 'px';
      tip.style.right = left ? (rect.right - event.clientX + 14) + 'px' : 'auto';
    });
  };
  const draw = (value) => {
    const visible = shown(), lines = series(value).filter((line) => visible[line.run] && line.xs.length > 0);
    const log = value.loss && controls.elements.log.checked;
    const ys = range(lines, log);
    if (ys === null) return null;
    const xs = [Math.min(0, ...lines.map((line) => line.xs[0])), Math.max(...lines.map((line) => line.xs.at(-1)))];
    if (xs[0] === xs[1]) xs[1] = xs[0] + 1;
    const toX = (x) => LEFT + (x - xs[0]) / (xs[1] - xs[0]) * (WIDTH - LEFT - RIGHT);
    const scale = (y) => log ? Math.log10(y) : y;
    const clamp = (y) => Math.min(HEIGHT - BELOW, Math.max(TOP, y));
    const toY = (y) => clamp(TOP + (ys[1] - scale(y)) / (ys[1] - ys[0]) * (HEIGHT - TOP - BELOW));
    const box = document.createElement('div');
    box.className = 'chart';
    box.dataset.value = value.key;
    box.append(Object.assign(document.createElement('h3'), { textContent: value.name }));
    const root = svg('svg', { viewBox: '0 0 ' + WIDTH + ' ' + HEIGHT, role: 'img', 'aria-label': value.name });
    axes(root, toX, toY, xs, ys, log);
    lines.forEach((line) => {
      const style = { stroke: color(line.run), 'stroke-dasharray': dash(line.run) };
      if (value.smooth && controls.elements.smoothing.value > 0) {
        root.append(svg('path', { ...style, class: 'raw', d: path(line, line.raw, toX, toY) }));
      }
      root.append(svg('path', { ...style, class: 'line', d: path(line, line.ys, toX, toY) }));
      if (value.points && line.xs.length <= 80) {
        line.xs.forEach((x, i) => root.append(svg('circle', { cx: toX(x), cy: toY(line.ys[i]), r: 3,
          fill: color(line.run) })));
      }
    });
    box.append(root);
    follow(box, root, lines, xs, toX, value);
    return box;
  };
  const redraw = () => charts.replaceChildren(...values.map(draw).filter((box) => box !== null));
  controls.addEventListener('input', redraw);
  controls.addEventListener('submit', (event) => event.preventDefault());
  document.querySelectorAll('input[data-run]').forEach((box) => box.addEventListener('change', redraw));
  redraw();
})();
