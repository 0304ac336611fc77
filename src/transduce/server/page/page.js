// The page is a client of the API: one recording goes up, segments come back as they are final.
// States (on <body data-state>): empty, recording, uploading, listening, done.

const $ = (id) => document.getElementById(id);
const player = $("player");
const transcript = $("transcript");

let request = null;    // of the recording that is being transcribed
let recorder = null;
let words = [];        // {start, end, element} of the whole transcript, in order
let documents = {};    // txt, srt, vtt: complete files, from the server
let cursor = -1;       // the word that the keyboard is at
let playing = -1;      // the word that is heard
let chosen = null;     // the recording: {file, name}

// What is shown

const STATES = {
  empty: ["drop"],
  recording: ["drop"],
  uploading: ["result", "stop"],
  listening: ["result", "stop"],
  done: ["result", "again"],
};

function show(state) {
  document.body.dataset.state = state;
  for (const id of ["drop", "result", "stop", "again"]) $(id).hidden = !STATES[state].includes(id);
  for (const button of document.querySelectorAll("[data-document], #copy")) button.disabled = !documents.txt;
  $("record-label").textContent = state === "recording" ? "Stop recording" : "Record";
}

function say(text) {
  $("status").textContent = text;
}

function complain(text) {
  $("error").textContent = text;
  $("error").hidden = !text;
}

const clock = (seconds) => {
  const whole = Math.floor(seconds), minutes = Math.floor(whole / 60), hours = Math.floor(minutes / 60);
  const two = (number) => String(number).padStart(2, "0");
  return hours ? `${hours}:${two(minutes % 60)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
};

function progress(part) {
  if (Number.isFinite(part)) $("progress").value = Math.min(part, 1);
  else $("progress").removeAttribute("value");
}

// Transcribing

function begin(file, name) {
  chosen = {file, name};
  words = [];
  documents = {};
  cursor = playing = -1;
  transcript.replaceChildren();
  $("warnings").replaceChildren();
  $("name").textContent = name;
  URL.revokeObjectURL(player.src);
  player.hidden = false;
  player.src = URL.createObjectURL(file);
  complain("");
  show("uploading");
  send();
}

function send() {
  const form = new FormData();
  form.append("file", chosen.file, chosen.name);
  form.append("model", $("model").dataset.name || "whisper-1");
  form.append("stream", "true");
  form.append("response_format", "verbose_json");
  for (const name of ["txt", "srt", "vtt"]) form.append("include[]", name);
  const sent = request = new XMLHttpRequest();
  let position = 0;
  const read = () => { if (sent.status === 200) position = take(sent.responseText, position); };
  sent.upload.onprogress = (event) => { progress(event.loaded / event.total); say("Uploading"); };
  sent.upload.onload = () => { progress(NaN); say("Listening"); show("listening"); };
  sent.onprogress = read;
  sent.onload = () => { read(); ended(sent); };
  sent.onerror = () => { ended(sent); complain("The server cannot be reached."); };
  sent.onabort = () => { ended(sent); };
  sent.open("POST", "v1/audio/transcriptions");
  const key = sessionStorage.getItem("key");
  if (key) sent.setRequestHeader("Authorization", `Bearer ${key}`);
  sent.send(form);
}

function take(text, position) {
  // Complete events from a position on; gives the position behind them.
  for (let end; (end = text.indexOf("\n\n", position)) >= 0; position = end + 2) {
    const block = text.slice(position, end);
    if (block.startsWith("data: ")) receive(JSON.parse(block.slice(6)));
  }
  return position;
}

function receive(event) {
  if (event.type === "transcript.text.delta") add(event.segment);
  else if (event.type === "transcript.text.done") finish(event);
  else complain(event.error.message);
}

function finish(done) {
  documents = done.documents;
  for (const warning of done.warnings) {
    $("warnings").append(Object.assign(document.createElement("li"), {textContent: warning}));
  }
  const count = words.length === 1 ? "1 word" : `${words.length} words`;
  say(words.length ? `${count}, ${clock(done.duration)}` : "No speech was heard.");
}

function ended(sent) {
  if (sent !== request) return;
  request = null;
  if (sent.status === 401) return askForKey();
  if (sent.status >= 400) complain(message(sent));
  if (!documents.txt && documents.txt !== "") say(words.length ? "Stopped" : "");
  show(sent.status >= 400 || sent.status === 0 && !words.length ? "empty" : "done");
}

function message(sent) {
  try {
    return JSON.parse(sent.responseText).error.message;
  } catch {
    return `The server answered ${sent.status}.`;
  }
}

function askForKey() {
  show("empty");
  $("key").hidden = false;
  $("key-value").focus();
}

// The transcript

const LEVELS = [[0.9, "sure"], [0.75, "likely"], [0.5, "unsure"], [0, "doubtful"]];

function add(segment) {
  const row = Object.assign(document.createElement("p"), {className: "segment"});
  const from = document.createElement("button");
  from.type = "button";
  from.tabIndex = -1;
  from.textContent = clock(segment.start);
  from.setAttribute("aria-label", `Play from ${clock(segment.start)}`);
  from.onclick = () => play(segment.start);
  const text = document.createElement("span");
  for (const word of segment.words) text.append(wordElement(word), " ");
  row.append(from, text);
  transcript.append(row);
  progress(segment.end / player.duration);
  say(`Listening, ${clock(segment.end)} so far`);
}

function wordElement(word) {
  const element = document.createElement("span");
  const level = LEVELS.find(([least]) => word.confidence >= least)[1];
  element.className = `word ${level}`;
  element.textContent = word.word;
  element.title = `${clock(word.start)} · confidence ${Math.round(word.confidence * 100)} %`;
  element.dataset.index = words.length;
  words.push({start: word.start, end: word.end, element});
  return element;
}

function mark(index, name) {
  // Move the class `name` (cursor or now) to a word; -1 takes it away.
  for (const element of transcript.querySelectorAll(`.${name}`)) element.classList.remove(name);
  if (index >= 0) words[index].element.classList.add(name);
}

function move(index) {
  cursor = Math.max(0, Math.min(index, words.length - 1));
  mark(cursor, "cursor");
  words[cursor].element.scrollIntoView({block: "nearest"});
}

function neighbour(step) {
  // The first word of the segment above or below.
  const row = words[Math.max(cursor, 0)].element.closest(".segment");
  const other = step < 0 ? row.previousElementSibling : row.nextElementSibling;
  return Number((other || row).querySelector(".word").dataset.index);
}

// Playing

function play(seconds) {
  player.currentTime = seconds;
  player.play().catch(() => {});
}

function wordAt(seconds) {
  // The last word that has begun, unless it ended more than half a second ago.
  let first = 0, end = words.length;
  while (first < end) {
    const middle = (first + end) >> 1;
    if (words[middle].start <= seconds) first = middle + 1;
    else end = middle;
  }
  return first && seconds <= words[first - 1].end + 0.5 ? first - 1 : -1;
}

function follow() {
  const heard = wordAt(player.currentTime);
  if (heard !== playing) {
    playing = heard;
    mark(playing, "now");
  }
  if (!player.paused) requestAnimationFrame(follow);
}

player.onplay = player.onseeked = follow;
player.onerror = () => { if (player.src) player.hidden = true; };  // a format that this browser cannot play

// Recording

async function record() {
  if (recorder) return recorder.stop();
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({audio: true});
  } catch {
    return complain("The microphone cannot be used: allow it in the browser, or choose a file.");
  }
  complain("");
  const parts = [];
  recorder = new MediaRecorder(stream);
  recorder.ondataavailable = (event) => parts.push(event.data);
  recorder.onstop = () => {
    for (const track of stream.getTracks()) track.stop();
    const type = recorder.mimeType;
    recorder = null;
    begin(new Blob(parts, {type}), "Recording");
  };
  recorder.start(1000);
  show("recording");
}

// Files that go out

function download(name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([documents[name]], {type: "text/plain;charset=utf-8"}));
  link.download = `${chosen.name.replace(/\.[^.]*$/, "")}.${name}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

async function copy() {
  await navigator.clipboard.writeText(documents.txt);
  $("copy").textContent = "Copied";
  setTimeout(() => { $("copy").textContent = "Copy"; }, 1500);
}

// Controls

$("choose").onclick = () => $("file").click();
$("file").onchange = () => { if ($("file").files.length) begin($("file").files[0], $("file").files[0].name); $("file").value = ""; };
$("record").onclick = record;
$("stop").onclick = () => request?.abort();
$("again").onclick = () => { player.pause(); show("empty"); $("choose").focus(); };
$("copy").onclick = copy;
$("shade").onchange = () => document.body.classList.toggle("shaded", $("shade").checked);
for (const button of document.querySelectorAll("[data-document]")) {
  button.onclick = () => download(button.dataset.document);
}

$("key").onsubmit = (event) => {
  event.preventDefault();
  sessionStorage.setItem("key", $("key-value").value.trim());
  $("key").hidden = true;
  greet();
  if (chosen) begin(chosen.file, chosen.name);
};

transcript.onclick = (event) => {
  const word = event.target.closest(".word");
  if (!word) return;
  move(Number(word.dataset.index));
  play(words[cursor].start);
};

const KEYS = {
  ArrowRight: () => move(cursor + 1),
  ArrowLeft: () => move(cursor - 1),
  ArrowDown: () => move(neighbour(1)),
  ArrowUp: () => move(neighbour(-1)),
  Home: () => move(0),
  End: () => move(words.length - 1),
  Enter: () => play(words[Math.max(cursor, 0)].start),
  " ": () => { player.paused ? player.play().catch(() => {}) : player.pause(); },
};

transcript.onkeydown = (event) => {
  if (!words.length || event.target !== transcript || !(event.key in KEYS)) return;
  event.preventDefault();
  KEYS[event.key]();
};
transcript.onfocus = () => { if (cursor < 0 && words.length && transcript.matches(":focus-visible")) move(0); };

const isIdle = () => ["empty", "done"].includes(document.body.dataset.state);
document.ondragover = (event) => { event.preventDefault(); document.body.classList.toggle("over", isIdle()); };
document.ondragleave = (event) => { if (!event.relatedTarget) document.body.classList.remove("over"); };
document.ondrop = (event) => {
  event.preventDefault();
  document.body.classList.remove("over");
  const [file] = event.dataTransfer.files;
  if (file && isIdle()) begin(file, file.name);
};

async function greet() {
  const key = sessionStorage.getItem("key");
  const answer = await fetch("v1/models", {headers: key ? {Authorization: `Bearer ${key}`} : {}}).catch(() => null);
  if (answer?.status === 401) return askForKey();
  if (!answer?.ok) return;
  const [model] = (await answer.json()).data;
  $("model").textContent = $("model").dataset.name = model.id;
}

document.body.classList.add("shaded");
show("empty");
greet();
