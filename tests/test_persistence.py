"""A saved model predicts the same to the bit; no file, however broken or hostile, does more than raise a ValueError."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import nearexact
from nearexact import GPRegressor, SGPRegressor
from nearexact.kernels import SquaredExponential
from tests.model_files import altered, header_of, refused, resigned
from tests.problems import BUILT_IN, regression

X, Y = regression(60)
NEW = np.random.default_rng(5).normal(size=(500, 3)) * 2.0


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "model.nx"
    SGPRegressor(random_state=0, max_inducing=20).fit(X, Y).save(path)
    return path


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("estimator", [SGPRegressor, GPRegressor])
def test_round_trip_to_the_bit(name: str, estimator: type[SGPRegressor], tmp_path: Path) -> None:
    model = estimator(BUILT_IN[name], random_state=np.int64(3), time_limit="0.3s").fit(X, Y * 7.0 + 3.0)
    model.save(tmp_path / "model.nx")
    loaded = nearexact.load(tmp_path / "model.nx")
    assert type(loaded) is estimator
    for one, other in zip(model.predict(NEW, return_std=True), loaded.predict(NEW, return_std=True), strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(
        model.predict(NEW[:50], return_cov=True), loaded.predict(NEW[:50], return_cov=True), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(model.sample_y(NEW[:20], 3), loaded.sample_y(NEW[:20], 3))
    np.testing.assert_array_equal(model.inducing_points_, loaded.inducing_points_)
    assert loaded.kernel_ == model.kernel_
    assert loaded.noise_variance_ == model.noise_variance_
    assert (loaded.elbo_, loaded.upper_bound_) == (model.elbo_, model.upper_bound_)
    np.testing.assert_equal(asdict(loaded.certificate_), asdict(model.certificate_))  # for which NaN is NaN
    assert loaded.history_ == model.history_
    assert loaded.get_params() == model.get_params()
    loaded.save(tmp_path / "again.nx")
    assert (tmp_path / "again.nx").read_bytes() == (tmp_path / "model.nx").read_bytes()


def test_files_of_exact_models_hold_rows_but_no_factor(tmp_path: Path) -> None:
    """The factor has N² numbers; it is computed again. Earlier files have it."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(400, 2))
    model = GPRegressor(method="cholesky", time_limit=2.0, random_state=0).fit(inputs, np.sin(inputs[:, 0]))
    model.save(tmp_path / "model.nx")
    assert (tmp_path / "model.nx").stat().st_size < 400 * 400 * 8 / 10
    factor = torch.linalg.cholesky(
        torch.from_numpy(model.kernel_(model._posterior.inducing_points.numpy()))
        + model.noise_variance_ * torch.eye(400, dtype=torch.float64)
    )
    earlier = nearexact.load(altered(tmp_path / "model.nx", tmp_path / "old.nx", {}, L=factor.contiguous()))
    new = nearexact.load(tmp_path / "model.nx")
    queries = rng.normal(size=(50, 2))
    for one, other in zip(
        new.predict(queries, return_std=True), earlier.predict(queries, return_std=True), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    refused(altered(tmp_path / "model.nx", tmp_path / "torn.nx", {}, L=factor[:10].contiguous()))
    refused(altered(tmp_path / "model.nx", tmp_path / "torn.nx", {}, L=-factor.contiguous()))


def test_an_exact_model_knows_its_rows(tmp_path: Path) -> None:
    GPRegressor(time_limit=2.0, random_state=0).fit(X, Y).save(tmp_path / "model.nx")
    loaded = nearexact.load(tmp_path / "model.nx")
    assert loaded.certify(X, Y) == loaded.certificate_ == loaded.certify()
    with pytest.raises(ValueError, match="these are not the data that the model was fitted to"):
        loaded.certify(X[::-1], Y)
    with pytest.raises(ValueError, match="these are not the data that the model was fitted to"):
        loaded.certify(X, Y + 0.3 * NEW[:60, 0])


def test_certify_after_loading_needs_the_data(saved: Path) -> None:
    loaded = nearexact.load(saved)
    with pytest.raises(ValueError, match="does not hold its training data: pass X and y"):
        loaded.certify()
    before = loaded.certificate_
    for near in (Y + 1e-3 * Y.std(), Y * 1.001):  # their likelihoods are hardly another one's
        with pytest.raises(ValueError, match="these are not the data that the model was fitted to"):
            loaded.certify(X, near)
    assert before.lower - 1e-6 <= loaded.certify(X, Y).lower <= loaded.certify(X, Y).upper <= before.upper + 1e-6
    with pytest.raises(ValueError, match="these are not the data that the model was fitted to"):
        loaded.certify(X, Y + 0.3 * NEW[:60, 0])


def test_files_of_the_first_version_are_read(saved: Path, tmp_path: Path) -> None:
    """They know neither the parts of a certificate's gap nor the lower bound of a stage."""
    header = header_of(saved)
    certificate = {name: header["certificate"][name] for name in ("lower", "upper", "elbo", "n", "verdict")}
    history = [{name: value for name, value in stage.items() if name != "lower_bound"} for stage in header["history"]]
    for stage in history:
        del stage["repairs"]["residuals_clamped"], stage["repairs"]["residuals_rejected"]
    change = {"version": 1, "certificate": certificate, "history": history}
    old = nearexact.load(altered(saved, tmp_path / "old.nx", change))
    new = nearexact.load(saved)
    np.testing.assert_array_equal(old.predict(NEW), new.predict(NEW))
    assert (old.certificate_.lower, old.certificate_.verdict) == (new.certificate_.lower, new.certificate_.verdict)
    assert old.certificate_.dominated_by == "unknown"
    assert "parts not known" in repr(old.certificate_)
    assert [stage.lower_bound for stage in old.history_] == [stage.elbo for stage in new.history_]
    assert old.certify(X, Y).dominated_by in ("trace", "residual")
    refused(altered(saved, tmp_path / "torn.nx", {**change, "version": 2}))  # the second version has them all


def test_files_of_the_second_version_are_read(saved: Path, tmp_path: Path) -> None:
    """They have no checksum."""
    old, new = nearexact.load(altered(saved, tmp_path / "old.nx", {})), nearexact.load(saved)
    np.testing.assert_array_equal(old.predict(NEW, return_std=True), new.predict(NEW, return_std=True))
    assert old.certificate_ == new.certificate_
    assert old.history_ == new.history_
    old.save(tmp_path / "new.nx")
    assert (tmp_path / "new.nx").read_bytes() == saved.read_bytes()


def test_metadata_are_kept_and_belong_to_one_fit(saved: Path, tmp_path: Path) -> None:
    model = nearexact.load(saved)
    assert model.metadata_ == {}
    model.metadata_["note"] = {"words": ["ä", None, 1.5]}
    model.save(tmp_path / "model.nx")
    loaded = nearexact.load(tmp_path / "model.nx")
    assert loaded.metadata_ == {"note": {"words": ["ä", None, 1.5]}}
    assert loaded.fit(X, Y).metadata_ == {}
    for value in ({1}, {(1, 2): 3}, object()):
        model.metadata_["note"] = value
        with pytest.raises(ValueError, match="cannot be saved"):
            model.save(tmp_path / "model.nx")
    assert nearexact.load(tmp_path / "model.nx").metadata_["note"]["words"][0] == "ä"


def test_feature_names_are_kept_and_checked(tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=["a", "ä", "column 3"])
    model = SGPRegressor(random_state=0).fit(frame, Y)
    model.save(tmp_path / "model.nx")
    loaded = nearexact.load(tmp_path / "model.nx")
    assert loaded.feature_names_in_.tolist() == ["a", "ä", "column 3"]
    np.testing.assert_array_equal(loaded.predict(frame), model.predict(frame))
    with pytest.raises(ValueError, match="feature names should match"):
        loaded.predict(frame.rename(columns={"a": "b"}))


def test_a_loaded_model_can_be_fitted_again(saved: Path) -> None:
    loaded = nearexact.load(saved)
    expected = loaded.predict(NEW)
    np.testing.assert_allclose(loaded.fit(X, Y).predict(NEW), expected, rtol=1e-6)


def test_saving_replaces_a_file_only_when_complete(saved: Path, tmp_path: Path) -> None:
    class Homemade(SquaredExponential):
        pass

    target = tmp_path / "model.nx"
    target.write_bytes(saved.read_bytes())
    model = nearexact.load(saved)
    model.kernel_ = Homemade()
    with pytest.raises(ValueError, match=r"only kernels of nearexact\.kernels can be saved, got Homemade"):
        model.save(target)
    assert target.read_bytes() == saved.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["model.nx"]
    with pytest.raises(FileNotFoundError):
        nearexact.load(saved).save(tmp_path / "nowhere" / "model.nx")


# ---- files that are not models ---------------------------------------------------------------------------------------


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no model file .*missing\.nx"):
        nearexact.load(tmp_path / "missing.nx")
    with pytest.raises(FileNotFoundError, match="there is no model file"):
        nearexact.load(tmp_path)


def test_truncated_files_are_refused(saved: Path, tmp_path: Path) -> None:
    content = saved.read_bytes()
    for length in [0, 1, 7, 8, 9, 100, len(content) // 2, len(content) - 8, len(content) - 1]:
        (tmp_path / "short.nx").write_bytes(content[:length])
        refused(tmp_path / "short.nx")
    (tmp_path / "long.nx").write_bytes(content + b"more")
    refused(tmp_path / "long.nx")


class Bomb:
    """Says so when it is unpickled."""

    exploded = False

    def __reduce__(self) -> tuple[object, ...]:
        return (setattr, (Bomb, "exploded", True))


def test_foreign_files_are_refused_and_nothing_is_executed(tmp_path: Path) -> None:
    archive = io.BytesIO()
    np.savez(archive, np.array([Bomb()], dtype=object))
    torch_file = io.BytesIO()
    torch.save({"model": Bomb()}, torch_file)
    foreign = {
        "pickle": pickle.dumps(Bomb()),
        "npz": archive.getvalue(),
        "torch": torch_file.getvalue(),
        "text": b"x,y\n1,2\n",
    }
    for name, content in foreign.items():
        (tmp_path / name).write_bytes(content)
        refused(tmp_path / name)
    save_file({"weights": torch.zeros(3)}, tmp_path / "other")
    assert "it holds something else" in refused(tmp_path / "other")
    assert not Bomb.exploded


@pytest.mark.parametrize(
    "change",
    [
        {"estimator": "LinearRegression"},
        {"estimator": "os.system"},
        {"estimator": ["SGPRegressor"]},
        {"estimator": "GPRegressor"},
        {"settings": {"kernel": None, "unknown": 1}},
        {"settings": []},
        {"kernel": {"name": "Kernel", "values": {}}},
        {"kernel": {"name": "Composite", "values": {"operation": "+", "parts": []}}},
        {"kernel": {"name": "__builtins__", "values": {}}},
        {"kernel": {"name": "SquaredExponential", "values": {"lengthscales": [1.0], "variance": 1.0}}},
        {"kernel": {"name": "SquaredExponential", "values": {"lengthscales": -1.0}}},
        {"kernel": {"name": "SquaredExponential", "values": {"colour": 1.0}}},
        {"kernel": {"operation": "-", "parts": []}},
        {"kernel": "SquaredExponential()"},
        {"kernel": None},
        {"noise_variance": -1.0},
        {"noise_variance": "much"},
        {"noise_variance": float("nan")},
        {"certificate": {"lower": 1.0}},
        {"history": [{"m": 3}]},
        {"history": None},
        {"feature_names": ["one", "two"]},
        {"feature_names": "abc"},
        {"feature_names": [1, 2, 3]},
        {"certificate": {"lower": "1", "upper": 2.0, "elbo": 1.0, "n": 60, "verdict": "certified"}},
        {"noise_variance": float("inf")},
        {"noise_variance": 10**400},
        {"elbo": float("nan")},
        {"upper_bound": None},
        {"certificate": {"lower": 2.0, "upper": 1.0, "elbo": 1.0, "n": 60, "verdict": "certified"}},
        {"certificate": {"lower": 1.0, "upper": 2.0, "elbo": 1.0, "n": 0, "verdict": "certified"}},
        {"certificate": {"lower": 1.0, "upper": 2.0, "elbo": 1.0, "n": 10, "verdict": "certified"}},
        {"certificate": {"lower": float("nan"), "upper": 2.0, "elbo": 1.0, "n": 60, "verdict": "certified"}},
        {"metadata": 5, "version": 3},
        {"version": 3},
        {"version": 99},
        {"format": "fitted hat"},
    ],
    ids=str,
)
def test_headers_that_do_not_make_sense_are_refused(change: dict[str, object], saved: Path, tmp_path: Path) -> None:
    refused(altered(saved, tmp_path / "altered.nx", change))
    if "version" not in change:  # someone who alters a file can also compute its checksum
        refused(resigned(saved, tmp_path / "altered.nx", change))


@pytest.mark.parametrize("change", [{"n": 0}, {"m": -1}, {"n": 61}, {"elbo": "1"}, {"noise_variance": 0.0}], ids=str)
def test_stages_that_do_not_make_sense_are_refused(change: dict[str, object], saved: Path, tmp_path: Path) -> None:
    history = header_of(saved)["history"]
    refused(altered(saved, tmp_path / "altered.nx", {"history": [{**history[0], **change}, *history[1:]]}))


def test_deeply_nested_kernels_are_refused(tmp_path: Path) -> None:
    content = '{"operation": "+", "parts": [' * 50_000
    save_file({"weights": torch.zeros(3)}, tmp_path / "deep.nx", {"nearexact": '{"kernel": ' + content})
    refused(tmp_path / "deep.nx")


def test_a_newer_version_is_named(saved: Path, tmp_path: Path) -> None:
    assert "its version is 99, this release reads versions 1, 2, 3 and 4" in refused(
        altered(saved, tmp_path / "altered.nx", {"version": 99})
    )


@pytest.mark.parametrize(
    "arrays",
    [
        {"Z": None},
        {"L": torch.zeros(3, 3, dtype=torch.float64)},
        {"weights": torch.zeros(2, 2, dtype=torch.float64)},
        {"weights": torch.tensor(1.0, dtype=torch.float64)},
        {"shift_X": torch.zeros(7, dtype=torch.float64)},
        {"scale_y": torch.tensor(float("nan"), dtype=torch.float64)},
        {"scale_y": torch.ones(3, dtype=torch.float64)},
        {"scale_X": torch.ones(1, dtype=torch.float64)},
        {"scale_X": torch.zeros(3, dtype=torch.float64)},
        {"Z": torch.zeros(60, 3, dtype=torch.float32)},
        {"more": torch.zeros(1, dtype=torch.float64)},
        {"weights": torch.zeros(0, dtype=torch.float64)},
        {"L": "negative"},
        {"L_B": "zero"},
    ],
    ids=str,
)
def test_arrays_that_do_not_fit_are_refused(
    arrays: dict[str, torch.Tensor | str | None], saved: Path, tmp_path: Path
) -> None:
    m = len(nearexact.load(saved).inducing_points_)
    diagonals = {"negative": -torch.eye(m, dtype=torch.float64), "zero": torch.zeros(m, m, dtype=torch.float64)}
    changed = {name: diagonals[array] if isinstance(array, str) else array for name, array in arrays.items()}
    refused(altered(saved, tmp_path / "altered.nx", {}, **changed))


def flipped(content: bytes, bits: Iterable[int]) -> bytes:
    changed = bytearray(content)
    for bit in bits:
        changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_no_flipped_bit_goes_unnoticed(saved: Path, tmp_path: Path) -> None:
    """All bits of the beginning, where the version and the checksum are, and random ones of the rest."""
    content = saved.read_bytes()
    beginning = range(8 * 200)
    others = np.random.default_rng(0).integers(8 * len(content), size=600).tolist()
    for bit in (*beginning, *others):
        (tmp_path / "flipped.nx").write_bytes(flipped(content, [bit]))
        refused(tmp_path / "flipped.nx")


@settings(max_examples=200, deadline=None)
@given(draw=st.data())
def test_damaged_bytes_never_do_worse_than_a_value_error(
    draw: st.DataObject, saved: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also in a file without a checksum, whose header is read whatever has become of it."""
    folder = tmp_path_factory.getbasetemp()
    content = altered(saved, folder / "old.nx", {}).read_bytes()
    changed = bytearray(content)
    for _ in range(draw.draw(st.integers(1, 4))):
        changed[draw.draw(st.integers(0, min(len(content), 6000) - 1))] = draw.draw(st.integers(0, 255))
    (folder / "damaged.nx").write_bytes(changed)
    try:
        nearexact.load(folder / "damaged.nx").predict(NEW)
    except ValueError as error:
        assert "damaged" in str(error)  # noqa: PT017


def test_a_huge_header_is_refused_before_it_is_parsed(saved: Path, tmp_path: Path) -> None:
    """The text is not JSON, which would be the complaint if it were parsed."""
    content = saved.read_bytes()
    length = 8 + int.from_bytes(content[:8], "little")
    for inserted in (3 * 2**20, 80 * 2**20):
        header = content[8:length] + b"x" * inserted
        (tmp_path / "huge.nx").write_bytes(len(header).to_bytes(8, "little") + header + content[length:])
        assert "its header has" in refused(tmp_path / "huge.nx")
    (tmp_path / "huge.nx").write_bytes((2**63).to_bytes(8, "little") + content[8:])
    assert "it is shorter than it should be" in refused(tmp_path / "huge.nx")


@pytest.mark.slow
def test_a_model_of_many_inputs_is_read_again(tmp_path: Path) -> None:
    """Its header is megabytes, and rightly so."""
    rng = np.random.default_rng(0)
    names = [f"column {i} of many, which has a long name" * 10 for i in range(3000)]
    X = pd.DataFrame(rng.normal(size=(20, 3000)), columns=names)
    model = SGPRegressor(time_limit="0.5s", max_inducing=5).fit(X, rng.normal(size=20))
    model.save(tmp_path / "wide.nx")
    assert int.from_bytes((tmp_path / "wide.nx").read_bytes()[:8], "little") > 2**20
    np.testing.assert_array_equal(nearexact.load(tmp_path / "wide.nx").predict(X), model.predict(X))


SAVE_ON_A_FULL_DISK = """
import resource, sys, nearexact
model = nearexact.load(sys.argv[1])
for room in sys.argv[3:]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(room), resource.RLIM_INFINITY))
    try:
        model.save(sys.argv[2])
    except OSError as error:
        print("OSError", error)
"""


def test_a_full_disk_is_an_os_error_and_leaves_the_old_file(saved: Path, tmp_path: Path) -> None:
    rooms = [str(int(share * saved.stat().st_size)) for share in (0.0, 0.3, 0.99)]
    (tmp_path / "model.nx").write_text("the old file")
    line = [sys.executable, "-c", SAVE_ON_A_FULL_DISK, str(saved), str(tmp_path / "model.nx"), *rooms]
    result = subprocess.run(line, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["OSError"] * 3
    assert (tmp_path / "model.nx").read_text() == "the old file"
    assert [path.name for path in tmp_path.iterdir()] == ["model.nx"]


def test_a_model_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    SGPRegressor(time_limit="5s", max_inducing=10).fit(X, Y).save(tmp_path / "model.nx")
    (tmp_path / "other").touch()
    assert (tmp_path / "model.nx").stat().st_mode == (tmp_path / "other").stat().st_mode
