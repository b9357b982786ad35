'use strict';
// Draws the timeline and the memory of one step. The data is in #data; times are nanoseconds of the step.
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const byId = (id) => document.getElementById(id);
  document.documentElement.classList.add('has-script');
  const lanesCanvas = byId('lanes'), tip = byId('tip'), detail = byId('task');
  const GUTTER = 112, AXIS = 26, ROW = 30, SHADOW = 7, GAP = 8, STRIP = 6, GROUP = 18;
  // Lanes and links are numbered over all ranks: those of the first, then those of the next.
  const laneCount = data.lanes.length, linkCount = data.links.length, ranks = data.ranks, many = ranks.length > 1;
  const rankOf = (lane) => Math.floor(lane / laneCount);
  const laneName = (lane) => (many ? 'rank ' + ranks[rankOf(lane)] + ' ' : '') + data.lanes[lane % laneCount];
  const predicted = data.plan.pb.some((_, i) => data.plan.ps[i] > 0);
  let step = data.steps[data.typical], from = 0, until = step.wall, selected = -1, hovered = -1;

  // ---- text --------------------------------------------------------------------------------------
  const time = (ns) => {
    const a = Math.abs(ns);
    if (a < 0.5) return '0';
    if (a >= 1e9) return (ns / 1e9).toFixed(a >= 1e11 ? 0 : 2) + ' s';
    if (a >= 1e6) return (ns / 1e6).toFixed(a >= 99.5e6 ? 0 : a >= 9.95e6 ? 1 : 2) + ' ms';
    if (a >= 1e3) return (ns / 1e3).toFixed(a >= 99.5e3 ? 0 : 1) + ' us';
    return ns.toFixed(0) + ' ns';
  };
  const size = (bytes) => {
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
    let i = 0;
    while (bytes >= 1024 && i < 4) { bytes /= 1024; i++; }
    return (i === 0 ? bytes : bytes.toFixed(bytes >= 99.95 ? 0 : 1)) + ' ' + units[i];
  };
  const NONE = 4294967295;
  const label = (i) => data.kinds[data.plan.kind[i]] +
    (data.plan.unit[i] === NONE ? '' : ' unit ' + data.plan.unit[i]) +
    (data.plan.mb[i] === NONE ? '' : ', batch ' + data.plan.mb[i]);
  const queued = (i) => step.t[3 * i], started = (i) => step.t[3 * i + 1], ended = (i) => step.t[3 * i + 2];
  const recorded = (i) => step.t[3 * i + 1] >= 0;
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();
  let palette = {};
  const kindColor = (i) => palette[data.kindColors[data.plan.kind[i]]];

  // The task that a task waited for last, by the rules of the lanes: a dependency, the previous task of its lane, the
  // norm, or the run-ahead limit.
  const lastOn = ranks.flatMap(() => data.lanes.map(() => -1));
  const previous = data.plan.lane.map((lane, i) => { const last = lastOn[lane]; lastOn[lane] = i; return last; });
  const norms = ranks.map((_, rank) => data.plan.kind.findIndex((k, i) =>
    data.kinds[k] === 'norm' && rankOf(data.plan.lane[i]) === rank));
  const heldBy = (i) => {
    let best = -1;
    const look = (k) => {
      if (k >= 0 && recorded(k) && ended(k) <= started(i) && (best < 0 || ended(k) > ended(best))) best = k;
    };
    data.plan.deps[i].forEach(look);
    look(previous[i]);
    const rank = rankOf(data.plan.lane[i]), norm = norms[rank];
    if (norm >= 0 && norm < i) look(norm);
    if (data.runAhead > 0 && i - data.plan.first[rank] >= data.runAhead) look(i - data.runAhead);
    return best;
  };
  // All ranks have the same sequence of transfers between them; the rank that came last to one held up the others.
  const meetings = ranks.map((_, rank) => data.plan.lane.map((_, i) => i)
    .filter((i) => data.plan.lane[i] === rank * laneCount + data.linkLane));
  const meetingOf = new Map(meetings.flatMap((tasks) => tasks.map((i, at) => [i, at])));
  const lastToCome = (i) => {
    if (!meetingOf.has(i)) return i;
    const tasks = meetings.map((of) => of[meetingOf.get(i)]).filter((k) => k !== undefined && recorded(k));
    return tasks.reduce((last, k) => started(k) > started(last) ? k : last, i);
  };
  let chain = new Set();
  const followChain = () => {
    chain = new Set();
    let last = -1;
    data.plan.kind.forEach((_, i) => { if (recorded(i) && (last < 0 || ended(i) > ended(last))) last = i; });
    for (let i = last; i >= 0; i = heldBy(lastToCome(i))) { chain.add(i); chain.add(lastToCome(i)); }
  };

  // ---- drawing -----------------------------------------------------------------------------------
  const prepare = (canvas, height) => {
    const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
    canvas.style.height = height + 'px';
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const g = canvas.getContext('2d');
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, width, height);
    g.font = '12px system-ui, sans-serif';
    g.textBaseline = 'middle';
    return { g, width };
  };
  const toX = (ns, width) => GUTTER + (ns - from) / (until - from) * (width - GUTTER);
  const toTime = (x, width) => from + (x - GUTTER) / (width - GUTTER) * (until - from);
  const drawAxis = (g, width, height, texts) => {
    const span = until - from, rough = span / Math.max(2, (width - GUTTER) / 110);
    const power = Math.pow(10, Math.floor(Math.log10(rough)));
    const tick = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) || rough;
    g.strokeStyle = palette.grid; g.fillStyle = palette.soft; g.lineWidth = 1;
    for (let t = Math.ceil(from / tick) * tick; t <= until; t += tick) {
      const x = Math.round(toX(t, width)) + 0.5;
      g.beginPath(); g.moveTo(x, texts ? AXIS - 4 : 0); g.lineTo(x, height); g.stroke();
      if (texts) { g.textAlign = x > width - 30 ? 'right' : 'center'; g.fillText(time(t), x, AXIS / 2 - 1); }
    }
  };
  // A group of rows for each rank: its lanes, and below them a row for each link with the transfers of the optimizer's
  // chunks.
  const laneTops = new Map(), linkTops = new Map(), rankTops = [], shownLanes = [];
  let nextTop = AXIS;
  const addRow = (tops, key) => { tops.set(key, nextTop); nextTop += ROW + (predicted ? SHADOW + 2 : 0) + GAP; };
  ranks.forEach((_, rank) => {
    rankTops.push(nextTop);
    nextTop += many ? GROUP : 0;
    data.lanes.map((_, i) => rank * laneCount + i).filter((lane) => data.plan.lane.includes(lane))
      .forEach((lane) => { shownLanes.push(lane); addRow(laneTops, lane); });
    data.links.map((_, i) => rank * linkCount + i)
      .filter((link) => data.steps.some((s) => s.flows.some((f) => f[0] === link)))
      .forEach((link) => addRow(linkTops, link));
  });
  const taskTop = (i) => laneTops.get(data.plan.lane[i]);
  const lanesHeight = nextTop + 2;
  const partColors = ['reads', 'adam', 'writes', 'copies'];
  const flowColor = (link) => palette[data.links[link % linkCount].includes('write') ? 'writes' : 'reads'];
  const rate = (flow) => flow[2] > flow[1] ? (flow[4] / (flow[2] - flow[1])).toFixed(2) + ' GB/s' : '';

  const drawTask = (g, width, i, top) => {
    const x0 = Math.max(GUTTER, toX(started(i), width)), x1 = Math.min(width, toX(ended(i), width));
    const w = Math.max(1, x1 - x0);
    if (x1 < GUTTER || x0 > width) return;
    g.globalAlpha = selected >= 0 && selected !== i && !data.plan.deps[selected].includes(i) ? 0.45 : 1;
    g.fillStyle = kindColor(i);
    g.fillRect(x0, top, w > 3 ? w - 0.75 : w, ROW);
    const parts = step.parts[i], whole = parts ? parts.reduce((a, b) => a + b, 0) : 0;
    if (whole > 0 && w > 4) {
      let x = toX(started(i), width);
      g.fillStyle = palette.card; g.fillRect(x0, top, w, STRIP + 1);
      parts.forEach((ns, part) => {
        const next = x + ns / whole * (toX(ended(i), width) - toX(started(i), width));
        g.fillStyle = palette[partColors[part]];
        if (next > x0 && x < x1) g.fillRect(Math.max(x, x0), top, Math.min(next, x1) - Math.max(x, x0), STRIP);
        x = next;
      });
    }
    if (chain.has(i) && w > 2) { g.fillStyle = palette.ink; g.fillRect(x0, top + ROW - 3, w > 3 ? w - 0.75 : w, 3); }
    const unit = data.plan.unit[i] === NONE ? '' : String(data.plan.unit[i]);
    const text = w > 130 ? label(i) : w > 18 && unit !== '' ? unit : '';
    if (text !== '' && g.measureText(text).width < w - 6) {
      g.fillStyle = palette.card; g.textAlign = 'center'; g.fillText(text, x0 + w / 2, top + ROW / 2);
    }
    g.globalAlpha = 1;
    if (i === selected || i === hovered) {
      g.strokeStyle = palette.ink; g.lineWidth = i === selected ? 2 : 1;
      g.strokeRect(x0 - 0.5, top - 0.5, w + 0.5, ROW + 1);
    }
  };
  const drawLinks = (g, width) => {
    if (selected < 0) return;
    const middle = (i) => taskTop(i) + ROW / 2;
    g.strokeStyle = palette.ink; g.lineWidth = 1.25;
    const last = heldBy(selected);
    [...new Set([...data.plan.deps[selected], ...(last >= 0 ? [last] : [])])].filter(recorded).forEach((k) => {
      const x0 = toX(ended(k), width), x1 = toX(started(selected), width), bend = Math.max(12, Math.abs(x1 - x0) / 2);
      g.setLineDash(k === last ? [] : [4, 4]);
      g.beginPath(); g.moveTo(x0, middle(k));
      g.bezierCurveTo(x0 + bend, middle(k), x1 - bend, middle(selected), x1, middle(selected)); g.stroke();
    });
    g.setLineDash([]);
  };
  const drawFlow = (g, width, flow) => {
    const x0 = Math.max(GUTTER, toX(flow[1], width)), x1 = Math.min(width, toX(flow[2], width)), w = Math.max(1, x1 - x0);
    if (x1 < GUTTER || x0 > width) return;
    const top = linkTops.get(flow[0]) + 3, text = w > 86 ? flow[3] + ': ' + rate(flow) : w > 18 ? String(flow[3]) : '';
    g.fillStyle = flowColor(flow[0]); g.fillRect(x0, top, w > 3 ? w - 0.75 : w, ROW - 6);
    if (text !== '' && g.measureText(text).width < w - 4) {
      g.fillStyle = palette.card; g.textAlign = 'center'; g.fillText(text, x0 + w / 2, top + (ROW - 6) / 2);
    }
  };
  const drawLanes = () => {
    const { g, width } = prepare(lanesCanvas, lanesHeight);
    drawAxis(g, width, lanesHeight, true);
    g.save();
    g.beginPath(); g.rect(GUTTER, 0, width - GUTTER, lanesHeight); g.clip();
    data.plan.kind.forEach((_, i) => {
      const top = taskTop(i);
      if (recorded(i)) drawTask(g, width, i, top);
      if (predicted && data.plan.ps[i] > 0) {
        const x0 = toX(data.plan.pb[i], width), x1 = toX(data.plan.pb[i] + data.plan.ps[i], width);
        g.fillStyle = kindColor(i); g.globalAlpha = 0.55;
        g.fillRect(x0, top + ROW + 2, Math.max(0.75, x1 - x0 - 0.5), SHADOW); g.globalAlpha = 1;
      }
    });
    step.flows.forEach((flow) => drawFlow(g, width, flow));
    drawLinks(g, width);
    g.restore();
    g.textAlign = 'right';
    linkTops.forEach((top, link) => {
      g.fillStyle = palette.soft; g.fillText('opt. ' + data.links[link % linkCount], GUTTER - 12, top + ROW / 2);
    });
    laneTops.forEach((top, lane) => {
      g.fillStyle = palette.ink; g.fillText(data.lanes[lane % laneCount], GUTTER - 12, top + ROW / 2);
    });
    g.textAlign = 'left'; g.fillStyle = palette.ink; g.font = '600 12px system-ui, sans-serif';
    if (many) rankTops.forEach((top, rank) => g.fillText('rank ' + ranks[rank], 0, top + GROUP / 2));
  };
  const drawMemory = (canvas, tier) => {
    const { g, width } = prepare(canvas, 118), height = 118, moments = step.mem[tier];
    const used = data.bufs.map((_, kind) => kind).filter((kind) => moments.v.some((v) => v[kind] > 0));
    const most = Math.max(data.peak[tier], ...moments.v.map((v) => v.reduce((a, b) => a + b, 0)));
    const y = (bytes) => height - 4 - bytes / (most || 1) * (height - 20);
    drawAxis(g, width, height, false);
    g.save();
    g.beginPath(); g.rect(GUTTER, 0, width - GUTTER, height); g.clip();
    const below = moments.v.map(() => 0);
    used.forEach((kind) => {
      g.fillStyle = palette[data.bufColors[kind]];
      g.beginPath();
      const base = below.slice();
      moments.ns.forEach((ns, i) => {
        const x = toX(ns, width), top = y(base[i] + moments.v[i][kind]);
        if (i === 0) g.moveTo(x, top); else { g.lineTo(x, y(base[i - 1] + moments.v[i - 1][kind])); g.lineTo(x, top); }
        below[i] += moments.v[i][kind];
      });
      const end = toX(step.wall, width), n = moments.ns.length - 1;
      g.lineTo(end, y(below[n])); g.lineTo(end, y(base[n]));
      for (let i = n; i >= 0; i--) {
        const right = i === n ? end : toX(moments.ns[i + 1], width);
        g.lineTo(right, y(base[i])); g.lineTo(toX(moments.ns[i], width), y(base[i]));
      }
      g.closePath(); g.fill();
    });
    g.restore();
    g.strokeStyle = palette.bad; g.setLineDash([5, 4]); g.lineWidth = 1.25;
    g.beginPath(); g.moveTo(GUTTER, y(data.peak[tier])); g.lineTo(width, y(data.peak[tier])); g.stroke();
    g.setLineDash([]);
    g.textAlign = 'right'; g.fillStyle = palette.ink; g.fillText(data.tiers[tier], GUTTER - 12, 22);
    g.fillStyle = palette.soft;
    g.fillText(size(data.peak[tier]), GUTTER - 12, 40);
    g.fillText('arena', GUTTER - 12, 56);
  };
  let pending = false;
  const draw = () => {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => {
      pending = false;
      drawLanes();
      document.querySelectorAll('canvas[data-tier]').forEach((c) => drawMemory(c, Number(c.dataset.tier)));
      byId('range').textContent =
        'step ' + step.n + ': ' + time(from) + ' to ' + time(until) + ' of ' + time(step.wall);
    });
  };

  // ---- navigation ------------------------------------------------------------------------------------
  const show = (a, b) => {
    const span = Math.min(step.wall, Math.max(2000, b - a));
    from = Math.min(Math.max(0, a), step.wall - span);
    until = from + span;
    draw();
  };
  const zoom = (factor, around) => {
    const middle = selected >= 0 ? (started(selected) + ended(selected)) / 2 : -1;
    const at = around !== undefined ? around : middle > from && middle < until ? middle : (from + until) / 2;
    show(at - (at - from) * factor, at + (until - at) * factor);
  };
  const pan = (share) => show(from + share * (until - from), until + share * (until - from));
  const reveal = (i) => {
    const span = until - from, middle = (started(i) + ended(i)) / 2;
    if (started(i) < from || ended(i) > until) show(middle - span / 2, middle + span / 2);
  };
  const link = (i) => '<a href="#task" data-task="' + i + '">' + label(i) + '</a> on ' + laneName(data.plan.lane[i]);
  const select = (i) => {
    selected = i;
    if (i < 0) {
      detail.innerHTML = '<span class="soft">Select a task to see what it did and what it waited for.</span>';
      draw();
      return;
    }
    const ns = ended(i) - started(i), bytes = data.plan.bytes[i], last = heldBy(i);
    const rows = [['ran', time(started(i)) + ' to ' + time(ended(i)) + ', ' + time(ns)],
      ['issued at', time(queued(i)) + ', ' + time(started(i) - queued(i)) + ' before it started']];
    if (bytes > 0) rows.push(['moved', size(bytes) + (ns > 0 ? ', ' + (bytes / ns).toFixed(2) + ' GB/s' : '')]);
    if (data.plan.ps[i] > 0) {
      rows.push(['predicted', time(data.plan.ps[i]) + ', starting at ' + time(data.plan.pb[i])]);
    }
    if (last >= 0) {
      rows.push(['waited last for', link(last) + ', which ended ' + time(started(i) - ended(last)) + ' earlier']);
    }
    const late = lastToCome(i);
    if (late !== i) {
      rows.push(['waited within for', link(late) + ', which began ' + time(started(late) - started(i)) + ' later']);
    }
    if (step.parts[i]) {
      rows.push(['time by part', step.parts[i].map((part, k) => [part, data.parts[k]]).filter(([part]) => part > 0)
        .map(([part, name]) => name + ' ' + time(part)).join(', ')]);
    }
    rows.push(['depends on', data.plan.deps[i].map(link).join('; ') || 'nothing']);
    detail.innerHTML = '<b>' + label(i) + '</b> on ' + laneName(data.plan.lane[i]) +
      (chain.has(i) ? ', part of the longest chain' : '') +
      '<dl>' + rows.map(([k, v]) => '<dt>' + k + '</dt><dd>' + v + '</dd>').join('') + '</dl>';
    draw();
  };
  const neighbour = (direction) => {
    const order = data.plan.kind.map((_, i) => i).filter(recorded).sort((a, b) => started(a) - started(b) || a - b);
    const at = order.indexOf(selected);
    const next = order[at < 0 ? 0 : Math.min(order.length - 1, Math.max(0, at + direction))];
    select(next); reveal(next);
  };
  const otherLane = (direction) => {
    if (selected < 0) { neighbour(1); return; }
    const row = shownLanes.indexOf(data.plan.lane[selected]) + direction;
    if (row < 0 || row >= shownLanes.length) return;
    let best = -1;
    data.plan.lane.forEach((lane, i) => {
      if (lane !== shownLanes[row] || !recorded(i)) return;
      const distance = (k) => Math.abs(started(k) - started(selected));
      if (best < 0 || distance(i) < distance(best)) best = i;
    });
    if (best >= 0) { select(best); reveal(best); }
  };
  const buttons = [];
  const pickStep = (idx) => {
    const whole = from === 0 && until === step.wall;
    step = data.steps[idx];
    buttons.forEach((b, i) => b.setAttribute('aria-pressed', String(i === idx)));
    followChain();
    if (whole) { from = 0; until = step.wall; } else show(from, until);
    select(selected >= 0 && recorded(selected) ? selected : -1);
  };
  const turn = (direction) => {
    const idx = data.steps.indexOf(step) + direction;
    if (idx >= 0 && idx < data.steps.length) pickStep(idx);
  };

  const under = (event) => {
    const box = lanesCanvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    let best = -1;
    if (x < GUTTER) return -1;
    data.plan.lane.forEach((lane, i) => {
      const top = laneTops.get(lane);
      if (!recorded(i) || y < top || y > top + ROW) return;
      const x0 = toX(started(i), box.width), x1 = Math.max(x0 + 2, toX(ended(i), box.width));
      if (x >= x0 - 1 && x <= x1 + 1) best = i;
    });
    return best;
  };
  const flowUnder = (event) => {
    const box = lanesCanvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    return step.flows.find((f) => x >= GUTTER && y >= linkTops.get(f[0]) && y <= linkTops.get(f[0]) + ROW &&
      x >= toX(f[1], box.width) - 1 && x <= toX(f[2], box.width) + 1);
  };
  let grip = null;
  lanesCanvas.addEventListener('pointerdown', (e) => {
    grip = { x: e.clientX, from, until, moved: false };
    lanesCanvas.setPointerCapture(e.pointerId);
  });
  lanesCanvas.addEventListener('pointermove', (e) => {
    if (grip) {
      const shift = (e.clientX - grip.x) / (lanesCanvas.clientWidth - GUTTER) * (grip.until - grip.from);
      grip.moved = grip.moved || Math.abs(e.clientX - grip.x) > 3;
      lanesCanvas.classList.toggle('drag', grip.moved);
      if (grip.moved) show(grip.from - shift, grip.until - shift);
    }
    const i = grip && grip.moved ? -1 : under(e);
    const flow = i < 0 && !(grip && grip.moved) ? flowUnder(e) : undefined;
    tip.style.display = i < 0 && !flow ? 'none' : 'block';
    if (i >= 0 || flow) {
      tip.textContent = flow
        ? data.links[flow[0] % linkCount] + ' for the optimizer, unit ' + flow[3] + '\n' + size(flow[4]) + ' in ' +
          time(flow[2] - flow[1]) + ', ' + rate(flow) + (flow[5] > 0 ? '\nnothing in flight for ' + time(flow[5]) : '')
        : label(i) + '\n' + time(ended(i) - started(i)) + ' on ' + laneName(data.plan.lane[i]) +
          (data.plan.bytes[i] > 0 ? '\n' + size(data.plan.bytes[i]) : '');
      tip.style.left = Math.min(window.innerWidth - tip.offsetWidth - 8, e.clientX + 14) + 'px';
      tip.style.top = e.clientY + 16 + 'px';
    }
    if (i !== hovered) { hovered = i; draw(); }
  });
  lanesCanvas.addEventListener('pointerup', (e) => {
    if (grip && !grip.moved) select(under(e));
    grip = null;
    lanesCanvas.classList.remove('drag');
  });
  lanesCanvas.addEventListener('pointerleave', () => { tip.style.display = 'none'; hovered = -1; draw(); });
  lanesCanvas.addEventListener('dblclick', (e) => {
    const box = lanesCanvas.getBoundingClientRect();
    zoom(0.4, toTime(e.clientX - box.left, box.width));
  });
  lanesCanvas.addEventListener('wheel', (e) => {
    const box = lanesCanvas.getBoundingClientRect();
    if (e.ctrlKey || e.metaKey || e.altKey) zoom(Math.exp(e.deltaY * 0.002), toTime(e.clientX - box.left, box.width));
    else if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) pan((e.deltaX || e.deltaY) / 900);
    else return;
    e.preventDefault();
  }, { passive: false });

  const actions = {
    ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15),
    '+': () => zoom(0.7), '=': () => zoom(0.7), '-': () => zoom(1 / 0.7),
    '0': () => show(0, step.wall), Home: () => show(0, step.wall), n: () => neighbour(1), p: () => neighbour(-1),
    ArrowUp: () => otherLane(-1), ArrowDown: () => otherLane(1), '[': () => turn(-1), ']': () => turn(1),
    Escape: () => select(-1),
    Enter: () => {
      if (selected < 0) return;
      const margin = Math.max(2000, ended(selected) - started(selected));
      show(started(selected) - margin, ended(selected) + margin);
    },
  };
  lanesCanvas.addEventListener('keydown', (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || !actions[e.key]) return;
    actions[e.key]();
    e.preventDefault();
  });
  document.querySelectorAll('[data-key]').forEach((b) => b.addEventListener('click', () => actions[b.dataset.key]()));
  detail.addEventListener('click', (e) => {
    if (e.target.dataset.task === undefined) return;
    e.preventDefault();
    select(Number(e.target.dataset.task)); reveal(selected);
  });

  // ---- start -------------------------------------------------------------------------------------
  const paint = () => {
    const names = ['ink', 'soft', 'grid', 'card', 'bad', ...partColors, ...data.kindColors, ...data.bufColors];
    palette = Object.fromEntries(names.map((n) => [n, color(n)]));
    draw();
  };
  // Caps the height of a step far longer than the others, so that theirs stay visible; its colour marks it.
  const longest = Math.min(Math.max(...data.steps.map((s) => s.wall)), 3 * data.steps[data.typical].wall);
  data.steps.forEach((s, i) => {
    const b = document.createElement('button');
    b.type = 'button';
    b.style.height = Math.min(100, Math.max(6, 100 * s.wall / longest)) + '%';
    b.classList.toggle('cut', s.wall > longest);
    b.title = 'step ' + s.n + ': ' + time(s.wall) + (i === data.typical ? ', of median length' : '');
    b.setAttribute('aria-label', b.title);
    b.addEventListener('click', () => pickStep(i));
    byId('steps').append(b);
    buttons.push(b);
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', paint);
  new ResizeObserver(draw).observe(lanesCanvas);
  pickStep(data.typical);
  paint();
})();
