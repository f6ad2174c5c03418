"""What a site agrees to: limits, lists of runs, and decisions of a person."""

import dataclasses
import hashlib
import json

import pytest

from coterie.errors import UserError
from coterie.sites import policy
from coterie.sites.policy import Policy, Verdict, consult, decide, of_state, pending, read
from coterie.sites.terms import Form, Terms

TERMS = Terms(
    announcement="a" * 64,
    method="pflego",
    version="0.1.0",
    rounds=20,
    tensors=(Form("body.0.weight", (3, 2), "float32"), Form("body.0.bias", (3,), "float32")),
    numbers=("loss", "examples"),
    scores=True,
)
OTHER = dataclasses.replace(TERMS, rounds=21)


def write(folder, text):
    (folder / "policy.toml").write_text(text)
    return of_state(folder)


def test_the_digest_is_the_sha256_of_canonical_json():
    text = (
        '{"announcement":"' + "a" * 64 + '","method":"pflego","numbers":["examples","loss"],"privacy":{},"rounds":20,'
        '"scores":true,"tensors":[["body.0.bias",[3],"float32"],["body.0.weight",[3,2],"float32"]],"version":"0.1.0"}'
    )
    assert TERMS.digest() == hashlib.sha256(text.encode()).hexdigest()


def test_the_digest_depends_on_every_field_but_not_on_orders():
    others = {
        "announcement": "b" * 64,
        "method": "fedavg",
        "version": "0.2.0",
        "rounds": 21,
        "tensors": (*TERMS.tensors, Form("head.weight", (2, 3), "float32")),
        "numbers": ("loss",),
        "scores": False,
        "privacy": {"noise": 0.5},
    }
    assert set(others) == {field.name for field in dataclasses.fields(Terms)}
    digests = {dataclasses.replace(TERMS, **{name: value}).digest() for name, value in others.items()}
    assert len(digests | {TERMS.digest()}) == len(others) + 1
    turned = dataclasses.replace(TERMS, tensors=TERMS.tensors[::-1], numbers=TERMS.numbers[::-1])
    assert turned.digest() == TERMS.digest()
    for form in (Form("body.0.weight", (2, 3), "float32"), Form("body.0.weight", (3, 2), "float64")):
        assert dataclasses.replace(TERMS, tensors=(form, TERMS.tensors[1])).digest() != TERMS.digest()


def test_terms_survive_a_file():
    terms = dataclasses.replace(TERMS, privacy={"noise": 0.5, "norm": 1.0})
    assert Terms.from_json(json.loads(json.dumps(terms.to_json()))).digest() == terms.digest()


@pytest.mark.parametrize("text", ["pf\x1b[2Jlego", "a\nb", "\u202eabc", "a\0"])
@pytest.mark.parametrize("place", ["method", "version", "tensors", "numbers"])
def test_texts_that_could_deceive_a_person_are_refused(place, text):
    value = {"tensors": (Form(text, (1,), "float32"),), "numbers": (text,)}.get(place, text)
    with pytest.raises(UserError, match="characters that cannot be shown"):
        dataclasses.replace(TERMS, **{place: value})


def test_a_reply_may_contain_what_was_agreed_to_and_no_more():
    assert TERMS.excess(TERMS.tensors, TERMS.numbers) is None
    assert TERMS.excess(TERMS.tensors[:1], ["loss"]) is None
    assert TERMS.excess([Form("body.0.bias", (3, 1), "float32")], []) == "the tensor body.0.bias 3x1 float32"
    assert TERMS.excess([Form("body.0.bias", (3,), "float64")], []) == "the tensor body.0.bias 3 float64"
    assert TERMS.excess([Form("head.bias", (), "float32")], []) == "the tensor head.bias 1 float32"
    assert TERMS.excess(TERMS.tensors, ["loss", "norm"]) == "the number norm"


@pytest.mark.parametrize(
    ("limits", "objection"),
    [
        ({}, None),
        ({"methods": ["fedavg", "pflego"]}, None),
        ({"methods": ["fedavg"]}, "the policy allows the methods fedavg, and the run uses pflego"),
        ({"methods": []}, "the policy allows the methods (none), and the run uses pflego"),
        ({"max_rounds": 20}, None),
        ({"max_rounds": 19}, "the policy allows 19 rounds, and the run has 20"),
        ({"send": ["body.*"]}, None),
        ({"send": ["*.weight", "*.bias"]}, None),
        ({"send": ["body.*.weight"]}, "the policy does not allow that the tensor body.0.bias is sent"),
        ({"send": ["BODY.*"]}, "the policy does not allow that the tensor body.0.weight is sent"),
        ({"send": []}, "the policy does not allow that the tensor body.0.weight is sent"),
        ({"scores": False}, "the policy does not allow that scores are sent, and the run asks for them"),
        (
            {"max_norm": 1.0},
            "the policy asks that replies are clipped to a norm of 1, and the run does not clip them",
        ),
        ({"min_noise": 0.5}, "the policy asks for noise of at least 0.5, and the run adds none"),
    ],
)
def test_limits(limits, objection):
    for mode in ("ask", "accept-all"):
        assert Policy(mode=mode, **limits).judge(TERMS) == objection
    listed = Policy(mode="accept-listed", accept=[TERMS.digest()], **limits)
    assert listed.judge(TERMS) == objection


def test_clipping_and_noise_are_compared_with_what_the_site_itself_applies():
    private = dataclasses.replace(TERMS, privacy={"norm": 1.0, "noise": 0.5})
    for limits in ({"max_norm": 1.0}, {"max_norm": 2.0}, {"min_noise": 0.5}, {"max_norm": 1.0, "min_noise": 0.1}):
        assert Policy(**limits).judge(private) is None
    assert Policy(max_norm=0.9).judge(private).endswith("a norm of 0.9, and the run clips them to 1")
    assert Policy(min_noise=0.6).judge(private).endswith("at least 0.6, and the run adds 0.5")


def test_letters_are_tensors_with_a_prefix():
    terms = dataclasses.replace(TERMS, tensors=(*TERMS.tensors, Form("letter:head.weight", (2, 3), "float32")))
    assert Policy(send=["body.*"]).judge(terms) == (
        "the policy does not allow that the tensor letter:head.weight is sent"
    )
    assert Policy(send=["body.*", "head.*"]).judge(terms) is not None
    assert Policy(send=["body.*", "letter:head.*"]).judge(terms) is None


def test_without_a_file_a_person_is_asked_about_every_run(tmp_path):
    assert of_state(tmp_path) == Policy() == Policy(mode="ask")
    assert consult(of_state(tmp_path), TERMS, tmp_path) == Verdict(
        "waiting", f"the run {TERMS.digest()} waits for a decision at the site"
    )


@pytest.mark.parametrize(
    ("mode", "accept", "kind"),
    [
        ("ask", [], "waiting"),
        ("ask", [TERMS.digest()], "accepted"),
        ("accept-listed", [TERMS.digest()], "accepted"),
        ("accept-listed", [OTHER.digest()], "refused"),
        ("accept-listed", [], "refused"),
        ("accept-all", [], "accepted"),
    ],
)
def test_modes(tmp_path, mode, accept, kind):
    verdict = consult(Policy(mode=mode, accept=accept), TERMS, tmp_path)
    assert verdict.kind == kind
    assert bool(verdict.reason) == (kind != "accepted")
    assert len(pending(tmp_path)) == (kind == "waiting")


def test_a_run_beyond_the_limits_is_refused_and_nobody_is_asked(tmp_path):
    assert consult(Policy(max_rounds=5), TERMS, tmp_path) == Verdict(
        "refused", "the policy allows 5 rounds, and the run has 20"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("accept", "kind"), [(True, "accepted"), (False, "refused")])
def test_a_person_decides(tmp_path, accept, kind):
    consult(Policy(), TERMS, tmp_path)
    consult(Policy(), OTHER, tmp_path)
    asked = {request.digest: request for request in pending(tmp_path)}
    assert set(asked) == {TERMS.digest(), OTHER.digest()}
    assert asked[TERMS.digest()].terms.digest() == TERMS.digest()
    decided = decide(tmp_path, TERMS.digest()[:8], accept)
    assert (decided.digest, decided.accepted) == (TERMS.digest(), accept)
    assert consult(Policy(), TERMS, tmp_path).kind == kind
    assert consult(Policy(), OTHER, tmp_path).kind == "waiting"
    assert [request.digest for request in pending(tmp_path)] == [OTHER.digest()]
    assert consult(Policy(max_rounds=5), TERMS, tmp_path).kind == "refused"  # the limits hold nevertheless
    decide(tmp_path, TERMS.digest(), not accept)
    assert consult(Policy(), TERMS, tmp_path).kind == {"accepted": "refused", "refused": "accepted"}[kind]


def test_a_refusal_by_a_person_counts_in_every_mode(tmp_path):
    consult(Policy(), TERMS, tmp_path)
    decide(tmp_path, TERMS.digest(), accept=False)
    for rules in (Policy(mode="accept-all"), Policy(accept=[TERMS.digest()])):
        assert consult(rules, TERMS, tmp_path) == Verdict("refused", "a person at the site has refused this run")


def test_an_acceptance_is_not_enough_for_a_list(tmp_path):
    consult(Policy(), TERMS, tmp_path)
    decide(tmp_path, TERMS.digest(), accept=True)
    assert consult(Policy(mode="accept-listed"), TERMS, tmp_path).kind == "refused"


def test_requests_are_private_and_written_once(tmp_path):
    consult(Policy(), TERMS, tmp_path)
    file = tmp_path / "requests" / f"{TERMS.digest()}.json"
    before = file.stat().st_mtime_ns, file.read_bytes()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    consult(Policy(), TERMS, tmp_path)
    assert (file.stat().st_mtime_ns, file.read_bytes()) == before


def test_a_server_cannot_fill_the_disk_with_requests(tmp_path, monkeypatch):
    monkeypatch.setattr(policy, "_MOST", 3)
    runs = [dataclasses.replace(TERMS, rounds=n) for n in range(1, 6)]
    assert [consult(Policy(), run, tmp_path).kind for run in runs] == ["waiting"] * 3 + ["refused"] * 2
    assert len(list((tmp_path / "requests").iterdir())) == 3
    decide(tmp_path, runs[0].digest(), accept=False)
    assert consult(Policy(), runs[3], tmp_path).kind == "waiting"


def test_unknown_and_ambiguous_digests_are_not_decided(tmp_path):
    with pytest.raises(UserError, match=r"no run has asked to be accepted .*check --state"):
        decide(tmp_path, "a", accept=True)
    runs = [dataclasses.replace(TERMS, rounds=n) for n in range(1, 18)]  # two of 17 begin with the same digit
    for run in runs:
        consult(Policy(), run, tmp_path)
    digits = [run.digest()[0] for run in runs]
    twice = next(digit for digit in digits if digits.count(digit) > 1)
    for wrong, complaint in ((twice, "several runs"), ("", "no run"), ("../x", "no run"), ("zz", "no run")):
        with pytest.raises(UserError, match=complaint):
            decide(tmp_path, wrong, accept=True)
    assert len(pending(tmp_path)) == 17


def test_a_request_that_was_changed_or_renamed_accepts_nothing(tmp_path):
    for run in (TERMS, OTHER):
        consult(Policy(), run, tmp_path)
    decide(tmp_path, OTHER.digest(), accept=True)
    file, accepted = (tmp_path / "requests" / f"{run.digest()}.json" for run in (TERMS, OTHER))
    kept = file.read_bytes()
    for content in (kept.replace(b'"accepted": null', b'"accepted": true'), accepted.read_bytes(), b"", b"{}"):
        file.write_bytes(content)
        with pytest.raises(UserError, match=rf"{file.name} is damaged"):
            consult(Policy(), TERMS, tmp_path)


def test_a_policy_is_read_from_its_file(tmp_path):
    found = write(
        tmp_path,
        'mode = "accept-listed"\n'
        f'accept = ["{"0" * 64}"]\nmethods = ["pflego", "fedavg"]\nmax_rounds = 200\nsend = ["body.*"]\n'
        "scores = false\nmax_norm = 1\nmin_noise = 0.5\n",
    )
    assert found == Policy("accept-listed", ["0" * 64], ["pflego", "fedavg"], 200, ["body.*"], False, 1.0, 0.5)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('mod = "ask"', r"policy\.toml: unknown key mod \(did you mean 'mode'\?\); a policy takes: mode, accept, "),
        ("[limits]\nmax_rounds = 3", r"unknown key limits"),
        ('mode = "never"', r"policy\.toml: mode = 'never'"),
        ('accept = ["12ab"]', r"accept\.0 = '12ab': must be the digest of a run"),
        (f'accept = ["{"A" * 64}"]', r"must be the digest of a run"),
        ('accept = "x"', r"accept"),
        ("max_rounds = 0", r"max_rounds = 0"),
        ("max_rounds = 2.5", r"max_rounds = 2\.5"),
        ('scores = "no"', r"scores = 'no'"),
        ("scores = 0", r"scores = 0"),
        ('send = "body.*"', r"send"),
        ("send = [1]", r"send"),
        ('methods = "pflego"', r"methods"),
        ("min_noise = -1", r"min_noise = -1"),
        ("max_norm = inf", r"max_norm = inf"),
        ("mode = ask", r"policy\.toml is not TOML.*nothing is sent"),
        ("max_rounds = 5\nmax_rounds = 6", r"is not TOML"),
        ("x = " + "[" * 5000, r"nested too deeply"),
        ("max_rounds = " + "9" * 5000, r"is not TOML"),
        ("max_rounds = " + "9" * 30, r"at most 64 bits"),
        (f'mode = "accept-all"\naccept = ["{"0" * 64}"]', r"accept-all.*remove one of the two"),
        ("#" * 1_000_001, r"at most 1,000,000 bytes"),
    ],
)
def test_a_policy_with_a_mistake_is_an_error(tmp_path, text, complaint):
    with pytest.raises(UserError, match=complaint):
        write(tmp_path, text)


def test_a_policy_that_cannot_be_read_is_an_error_and_not_the_default(tmp_path):
    file = tmp_path / "policy.toml"
    with pytest.raises(UserError, match=r"cannot read the policy .*nothing is sent"):
        read(file)  # a file that was named has to exist
    file.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="cannot read the policy"):
        of_state(tmp_path)
    file.unlink()
    file.mkdir()
    with pytest.raises(UserError, match="cannot read the policy"):
        of_state(tmp_path)
    file.rmdir()
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="is not TOML"):
        of_state(tmp_path)


def test_every_key_is_explained():
    fields = Policy.__pydantic_fields__
    assert all(field.description for field in fields.values())
