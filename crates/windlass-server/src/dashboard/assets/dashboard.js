// The dashboard's only script. Every page works without it: it adds live updates, the keyboard, dialogs and copying.
// It never builds markup from text: fresh parts come from the server's own pages, everything else is textContent.
"use strict";

(() => {
  const body = document.body;
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const one = (selector, root = document) => root.querySelector(selector);

  // ---- times, in the words of the server (words.rs)

  const about = (seconds) =>
    seconds < 60 ? `${seconds} s` : seconds < 3600 ? `${Math.floor(seconds / 60)} min`
      : seconds < 86400 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86400)} d`;
  const relative = (at) => {
    const seconds = Math.trunc((Date.now() + skew - at) / 1000);
    return seconds === 0 ? "now" : seconds > 0 ? `${about(seconds)} ago` : `in ${about(-seconds)}`;
  };
  // One zone for every time of day on a page: UTC as the server writes it, or the viewer's where they have chosen it.
  const ZONE = "windlass_zone";
  const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
  const remembered = () => { try { return localStorage.getItem(ZONE); } catch { return null; } };
  let isLocal = remembered() === "local";
  const nameOfHere = (date) => new Intl.DateTimeFormat("en", { timeZoneName: "short" }).formatToParts(date)
    .find((part) => part.type === "timeZoneName").value;
  const clock = (date, format) => {
    // Shifted, so that what reads UTC reads the viewer's clock.
    const at = isLocal ? new Date(date.getTime() - date.getTimezoneOffset() * 60000) : date;
    const [day, time] = at.toISOString().slice(0, 19).split("T");
    switch (format) {
      case "seconds": return time;
      case "day": return `${MONTHS[at.getUTCMonth()]} ${at.getUTCDate()}`;
      case "full": return `${day} ${time} ${isLocal ? nameOfHere(date) : "UTC"}`;
      default: return time.slice(0, 5);
    }
  };
  // The server's clock decides what "ago" means, not the one of this machine.
  let skew = 0;
  const tellTimes = (root = document) => {
    for (const time of all("time[data-relative]", root)) {
      const text = relative(Date.parse(time.dateTime));
      if (time.textContent !== text) time.textContent = text;
    }
  };
  const dressTimes = (root) => {
    const now = new Date();
    for (const time of all("time[data-clock]", root)) time.textContent = clock(new Date(time.dateTime), time.dataset.clock);
    // A tip begins with its time.
    for (const hit of all("[data-at]", root)) {
      const tip = one("title", hit);
      tip.textContent = tip.textContent.replace(/^[^·]*?( ·|$)/, `${clock(new Date(hit.dataset.at), "full")}$1`);
    }
    const here = nameOfHere(now);
    all("[data-zone-name]", root).forEach((name) => { name.textContent = isLocal ? here : "UTC"; });
    for (const button of all("[data-zone]", root)) {
      button.hidden = here === "UTC";
      button.textContent = isLocal ? "Show UTC" : `Show ${here}`;
    }
    for (const time of all("time[data-relative]", root)) {
      const local = new Date(time.dateTime).toLocaleString([], { dateStyle: "medium", timeStyle: "medium" });
      if (!time.title.includes(local)) time.title = `${local} here · ${time.title}`;
    }
  };

  const changeZone = () => {
    isLocal = !isLocal;
    try { localStorage.setItem(ZONE, isLocal ? "local" : "utc"); } catch { /* then it holds for this page */ }
    dressTimes(document);
  };

  // ---- small things

  const toast = (text) => {
    one(".toast")?.remove();
    const note = document.createElement("div");
    note.className = "toast";
    note.setAttribute("role", "status");
    note.textContent = text;
    body.append(note);
    setTimeout(() => note.remove(), 1800);
  };
  const copyText = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Without https there is no clipboard; an old way still works.
      const area = document.createElement("textarea");
      area.value = text;
      area.className = "sr";
      body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  };
  const copyFrom = async (button) => {
    await copyText(button.dataset.copy);
    button.classList.add("done");
    toast("Copied");
    setTimeout(() => button.classList.remove("done"), 1500);
  };
  const dress = (root) => {
    all("[data-copy], [data-fill], [data-help], [data-pick-all]", root).forEach((part) => { part.hidden = false; });
    dressTimes(root);
    tellTimes(root);
  };

  // ---- asking first

  const confirmDialog = one("#confirm");
  const ask = (form) => {
    one("#confirm-text").textContent = form.dataset.confirm;
    const yes = one("#confirm-yes");
    yes.textContent = form.dataset.confirmYes || "Yes";
    yes.classList.toggle("danger", "confirmDanger" in form.dataset);
    confirmDialog.returnValue = "";
    confirmDialog.onclose = () => {
      if (confirmDialog.returnValue !== "yes") return;
      const mark = document.createElement("input");
      mark.type = "hidden";
      mark.name = "confirmed";
      mark.value = "1";
      form.append(mark);
      form.submit();
    };
    confirmDialog.showModal();
    yes.focus();
  };
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.dataset.confirm && confirmDialog) {
      event.preventDefault();
      ask(form);
    }
  });

  // ---- colours

  const themeForm = one("[data-theme-form]");
  themeForm?.addEventListener("click", (event) => {
    const button = event.target.closest("button[name=theme]");
    if (!button) return;
    event.preventDefault();
    document.documentElement.dataset.theme = button.value;
    document.cookie = `windlass_theme=${button.value}; path=${body.dataset.base}/; max-age=31536000; samesite=strict`;
    all("button", themeForm).forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
  });

  // ---- choosing rows

  const bulk = () => one("[data-bulk]");
  const picks = () => all("input[name=id][form=bulk]");
  let lastPick = null;
  const countPicks = () => {
    const form = bulk();
    if (!form) return;
    const n = picks().filter((pick) => pick.checked).length;
    form.toggleAttribute("data-none", n === 0);
    one("[data-bulk-count]", form).textContent = n === 1 ? "1 job selected:" : `${n} jobs selected:`;
    one("[data-bulk-clear]", form).hidden = n === 0;
    const head = one("[data-pick-all]");
    if (head) {
      head.checked = n > 0 && n === picks().length;
      head.indeterminate = n > 0 && n < picks().length;
    }
  };
  document.addEventListener("change", (event) => {
    const target = event.target;
    if (target.matches("[data-pick-all]")) picks().forEach((pick) => { pick.checked = target.checked; });
    if (target.matches("[data-pick-all], input[name=id][form=bulk]")) countPicks();
    target.closest("[data-autosubmit]")?.requestSubmit();
  });

  // ---- clicks

  document.addEventListener("click", (event) => {
    const target = event.target;
    const button = target.closest("button");
    if (button?.dataset.copy !== undefined) return void copyFrom(button);
    if (button?.dataset.fill) {
      const field = document.getElementById(button.dataset.fill);
      field.value = button.dataset.value;
      return void one("#job-input")?.focus();
    }
    if (button?.hasAttribute("data-help")) return void one("#help").showModal();
    if (button?.hasAttribute("data-zone")) return void changeZone();
    if (target.closest("[data-find]") && !event.ctrlKey && !event.metaKey && openFind()) return void event.preventDefault();
    if (button?.hasAttribute("data-live-toggle")) return void toggleLive();
    if (button?.hasAttribute("data-bulk-clear")) {
      picks().forEach((pick) => { pick.checked = false; });
      return void countPicks();
    }
    if (event.shiftKey && target.matches("input[name=id][form=bulk]") && lastPick) {
      const rows = picks();
      const [from, to] = [rows.indexOf(lastPick), rows.indexOf(target)].sort((a, b) => a - b);
      if (from >= 0) rows.slice(from, to + 1).forEach((pick) => { pick.checked = target.checked; });
      countPicks();
    }
    if (target.matches("input[name=id][form=bulk]")) lastPick = target;
    for (const menu of all("details.menu[open]")) if (!menu.contains(target)) menu.open = false;
    const row = target.closest("[data-rows] [data-href]");
    const isControl = target.closest("a, button, input, label, select, textarea, summary, details, form");
    if (row && !isControl && !String(getSelection())) {
      if (event.ctrlKey || event.metaKey) open(row.dataset.href, "_blank", "noopener");
      else location.href = row.dataset.href;
    }
  });
  document.addEventListener("pointerover", (event) => {
    const hit = event.target.closest?.("rect.hit");
    const figure = event.target.closest?.("[data-chart]");
    if (figure) one(".chart-readout", figure).textContent = hit ? one("title", hit).textContent : "";
  });

  // ---- the one box, on every page

  const openFind = () => {
    const box = one("#find");
    if (box && !box.open) box.showModal();
    return Boolean(box);
  };

  // ---- the filter: suggestions go on with what is typed already

  const filter = one("#filter");
  const terms = one("#filter-terms");
  if (filter && terms) {
    const known = all("option", terms).map((option) => option.value);
    filter.addEventListener("input", () => {
      const before = filter.value.slice(0, filter.value.lastIndexOf(" ") + 1);
      all("option", terms).forEach((option, index) => { option.value = before + known[index]; });
    });
  }
  all("[data-json]").forEach((area) => area.addEventListener("blur", () => {
    let good = true;
    try {
      if (area.value.trim()) JSON.parse(area.value);
    } catch {
      good = false;
    }
    area.setAttribute("aria-invalid", String(!good));
  }));

  // ---- live updates: fetch this page again and put its live regions in place

  const every = Number(body.dataset.refresh || 0) * 1000;
  const SOONEST = 1000; // however many events come, a page is fetched at most once a second
  const LATEST = 30000; // a server that does not answer is asked this often at least
  const served = new Map(all("[data-live][id]").map((region) => [region.id, region.outerHTML]));
  let state = "live";
  let timer = 0;
  let busy = false;
  let misses = 0;
  let lastLook = Date.now();
  let stream = null;

  const show = (next) => {
    state = next;
    const button = one("[data-live-toggle]");
    if (!button) return;
    button.hidden = false;
    button.dataset.state = next;
    one(".live-text", button).textContent = { live: "live", paused: "paused", lost: "no connection", away: "paused" }[next];
  };
  const inUse = (region) => {
    const active = document.activeElement;
    const typing = active && region.contains(active) && active.matches("input:not([type=checkbox]), textarea, select");
    return typing || one("details.menu[open], .chart-plot:hover", region) || (getSelection().toString() && region.contains(getSelection().anchorNode));
  };
  // A list does not move under the hands of who is at it: while a row is chosen, focused or pointed at, its rows stay where
  // they are and are brought up to date one by one; rows that are new wait behind a button.
  const rowsOf = (region) => all("[data-rows] :is([data-href], [data-row])", region);
  const keyOf = (row) => row.dataset.href ?? row.dataset.row;
  const asServed = new WeakMap();
  const noteRows = (region) => rowsOf(region).forEach((row) => asServed.set(row, row.outerHTML));
  const canHover = matchMedia("(hover: hover)");
  const isHeld = (region) => region.hasAttribute("data-hold") && rowsOf(region).length > 0 &&
    (one("input[name=id]:checked, .current", region) || region.contains(document.activeElement) ||
      (canHover.matches && region.matches(":hover")));
  const renewRow = (row, fresh) => {
    if (asServed.get(row) === fresh.outerHTML) return;
    const isTaken = (part) => part.matches(".pick") || part.contains(document.activeElement);
    const parts = [...document.importNode(fresh, true).children];
    if (parts.length !== row.children.length) return;
    [...row.children].forEach((part, index) => { if (!isTaken(part)) part.replaceWith(parts[index]); });
    asServed.set(row, fresh.outerHTML);
    dress(row);
  };
  const hold = (region, fresh) => {
    // What is shown is no longer what was served: the next look must compare row by row, also if all is as before.
    served.delete(region.id);
    const known = new Map(rowsOf(region).map((row) => [keyOf(row), row]));
    const there = rowsOf(fresh);
    for (const row of there) if (known.has(keyOf(row))) renewRow(known.get(keyOf(row)), row);
    const n = there.filter((row) => !known.has(keyOf(row))).length;
    offer(region, n, n > 1 && n === there.length, () => {
      served.set(region.id, fresh.outerHTML);
      swap(region, fresh);
    });
  };
  const offer = (region, n, orMore, show) => {
    let bar = one(`.fresh-rows[data-of="${CSS.escape(region.id)}"]`);
    if (!n) return void bar?.remove();
    if (!bar) {
      bar = document.createElement("div");
      bar.className = "fresh-rows";
      bar.dataset.of = region.id;
      bar.setAttribute("role", "status");
      const button = document.createElement("button");
      button.type = "button";
      button.title = "Show them (n)";
      bar.append(button);
      region.before(bar);
    }
    const button = one("button", bar);
    const text = `${n}${orMore ? "+" : ""} new`;
    if (button.textContent !== text) button.textContent = text;
    button.onclick = show;
  };
  const swap = (old, fresh) => {
    const opened = all("details", old).map((part) => part.open);
    const picked = new Set(all("input[name=id]:checked", old).map((pick) => pick.value));
    const scrolled = all(".log, .scroll, pre", old).map((part) => [part.scrollTop, part.scrollLeft, part.scrollTop + part.clientHeight >= part.scrollHeight - 4]);
    const current = one(".current", old)?.dataset.href;
    const focused = old.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const region = document.importNode(fresh, true);
    all("details", region).forEach((part, index) => { if (opened[index]) part.open = true; });
    all("input[name=id]", region).forEach((pick) => { pick.checked = picked.delete(pick.value); });
    noteRows(region);
    // What is chosen stays chosen: rows that newer ones have pushed off the page go on below it, where they belong.
    const stay = all("input[name=id]:checked", old).filter((pick) => picked.has(pick.value)).map((pick) => pick.closest("tr"));
    one("tbody", region)?.append(...stay);
    offer(old, 0);
    if (current) one(`[data-href="${CSS.escape(current)}"]`, region)?.classList.add("current");
    old.replaceWith(region);
    all(".log, .scroll, pre", region).forEach((part, index) => {
      const was = scrolled[index];
      if (was) [part.scrollTop, part.scrollLeft] = [was[2] && part.matches(".log") ? part.scrollHeight : was[0], was[1]];
    });
    if (focused) one(`a[href="${CSS.escape(focused)}"]`, region)?.focus();
    dress(region);
    countPicks();
  };
  const look = async () => {
    clearTimeout(timer);
    if (busy || state === "paused" || state === "away") return;
    busy = true;
    lastLook = Date.now();
    try {
      const answer = await fetch(location.href, { headers: { "Windlass-Refresh": "1" }, cache: "no-store" });
      if (answer.redirected || answer.status === 401) return void location.reload();
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const date = Date.parse(answer.headers.get("date") ?? "");
      if (date && Math.abs(date - Date.now()) > 5000) skew = date - Date.now();
      for (const region of all("[data-live][id]")) {
        const fresh = page.getElementById(region.id);
        if (!fresh || served.get(region.id) === fresh.outerHTML || inUse(region)) continue;
        if (isHeld(region)) {
          hold(region, fresh);
          continue;
        }
        served.set(region.id, fresh.outerHTML);
        swap(region, fresh);
      }
      misses = 0;
      if (state === "lost") show("live");
      if (!page.body.dataset.refresh) return void end();
    } catch {
      misses += 1;
      if (misses > 1) show("lost");
    } finally {
      busy = false;
      plan(misses ? Math.min(LATEST, every * 2 ** misses) : every);
    }
  };
  const plan = (after) => {
    clearTimeout(timer);
    if (every && state !== "paused" && state !== "away") timer = setTimeout(look, after);
  };
  const soon = () => plan(Math.max(0, SOONEST - (Date.now() - lastLook)));
  const progress = (event) => {
    const seen = JSON.parse(event.data);
    const box = one("[data-progress]");
    if (!box || typeof seen.percent !== "number") return soon();
    one("[data-progress-bar]", box).value = seen.percent;
    one("[data-progress-percent]", box).textContent = `${Math.round(seen.percent)}%`;
    one("[data-progress-message]", box).textContent = seen.message ?? "";
  };
  const listen = () => {
    if (!body.dataset.events || stream || !window.EventSource) return;
    stream = new EventSource(body.dataset.events);
    stream.addEventListener("progress", progress);
    for (const kind of ["job", "status", "end"]) stream.addEventListener(kind, soon);
    stream.addEventListener("end", () => stream?.close());
  };
  const hush = () => {
    stream?.close();
    stream = null;
  };
  const end = () => {
    hush();
    state = "paused";
    one("[data-live-toggle]")?.remove();
  };
  const toggleLive = () => {
    if (!every) return;
    if (state === "paused") {
      show("live");
      listen();
      look();
    } else {
      show("paused");
      hush();
    }
  };
  document.addEventListener("visibilitychange", () => {
    if (!every || state === "paused") return;
    if (document.hidden) {
      show("away");
      hush();
    } else {
      show("live");
      listen();
      look();
    }
  });
  addEventListener("pagehide", hush);
  addEventListener("pageshow", (event) => {
    if (event.persisted && every && state !== "paused") {
      listen();
      look();
    }
  });

  // ---- the keyboard

  const rows = () => all("[data-rows] [data-href]");
  const move = (by) => {
    const list = rows();
    if (!list.length) return;
    const at = list.findIndex((row) => row.classList.contains("current"));
    const next = list[Math.min(list.length - 1, Math.max(0, at < 0 ? (by > 0 ? 0 : list.length - 1) : at + by))];
    list[at]?.classList.remove("current");
    next.classList.add("current");
    next.scrollIntoView({ block: "nearest" });
  };
  const KEYS = {
    "?": () => one("#help")?.showModal(),
    "/": openFind,
    f: () => { filter?.focus(); filter?.select(); },
    n: () => one(".fresh-rows button")?.click(),
    j: () => move(1),
    k: () => move(-1),
    x: () => {
      const pick = one(".current input[name=id]");
      if (pick) {
        pick.checked = !pick.checked;
        countPicks();
      }
    },
    p: toggleLive,
    c: () => one(".page-aside [data-copy]")?.click(),
    Enter: () => { const row = one(".current[data-href]"); if (row) location.href = row.dataset.href; return Boolean(row); },
  };
  let going = 0;
  document.addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey) {
      if (!one("dialog[open]") && openFind()) event.preventDefault();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || one("dialog[open]")) return;
    const inField = event.target.matches("input:not([type=checkbox]):not([type=radio]), textarea, select");
    if (event.key === "Escape") {
      all("details.menu[open]").forEach((menu) => { menu.open = false; });
      if (inField) event.target.blur();
      else one(".current")?.classList.remove("current");
      return;
    }
    if (inField) return;
    if (event.key === "Enter" && event.target.matches("a, button, summary, input")) return;
    if (going && Date.now() - going < 1500) {
      going = 0;
      const link = one(`nav.side a[data-key="${CSS.escape(event.key)}"]`);
      if (link) {
        event.preventDefault();
        location.href = link.href;
      }
      return;
    }
    if (event.key === "g") {
      going = Date.now();
      return;
    }
    const act = Object.hasOwn(KEYS, event.key) && KEYS[event.key];
    if (act) {
      if (event.key !== "Enter") event.preventDefault();
      act();
    }
  });

  // ---- start

  noteRows(document);
  dress(document);
  countPicks();
  setInterval(() => { if (!document.hidden) tellTimes(); }, 1000);
  // What an action did is said once: reloading the page must not say it again.
  if (location.search.includes("did=")) {
    const address = new URL(location.href);
    ["did", "n"].forEach((name) => address.searchParams.delete(name));
    history.replaceState(null, "", address);
  }
  if (every) {
    show(document.hidden ? "away" : "live");
    if (!document.hidden) {
      listen();
      plan(every);
    }
  }
  document.documentElement.dataset.ready = "";
})();
