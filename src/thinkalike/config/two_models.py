"""Which models a command line means: the source, and the target that it does not name."""

from __future__ import annotations

from collections.abc import Collection

from thinkalike.config.groups import Settings, given_settings, option
from thinkalike.config.parts import HOW_IT_RUNS

SOURCE = "gelu-3l-mini"  # where no model is named
TARGET = "solu-3l-mini"
# the setting that says where a model is that has no name of its own
PLACE_OF = {"local": "path", "hub": "hub_id"}


def settings_of_models(
    model: Settings,
    target: Settings,
    keys: Collection[str],
    chosen: Collection[str],
    reads: Collection[str],
) -> tuple[Settings, Settings]:
    """Return the settings of both models.

    A target that is not chosen is the source in all that is not given of it; one that is chosen
    runs as the overrides say of the source. Where no model is named, a stitch leads into another
    mini.

    Args:
        model, target: What was composed of them.
        keys: Of the overrides.
        chosen: The groups whose option is chosen.
        reads: What the job reads; () if it reads no model by name.
    """
    given = given_settings(model)
    given_of_target = given_settings(target)
    target_is_chosen = "model@target" in chosen
    takes_site_of_source = target_is_chosen and "model.site" in keys and "target.site" not in keys
    site_of_target = model["site"] if takes_site_of_source else given_of_target.get("site", "z")
    if "z" not in str(site_of_target):  # so that the head of the source is not that of the target
        given_of_target = {"head": None} | given_of_target
        keys = {*keys, "target.head"}

    how_it_runs = {name: model[name] for name in HOW_IT_RUNS if f"model.{name}" in keys}
    is_default = "model" not in chosen
    names_one = "name" in given or (not target_is_chosen and "name" in given_of_target)
    if is_default and (names_one or "model" in reads):
        model = option("model", SOURCE) | given

    if target_is_chosen:
        also_of_target = {}
        for name, value in how_it_runs.items():
            if f"target.{name}" not in keys:
                also_of_target[name] = value
        return model, target | also_of_target
    if model["name"] is None:
        return model, target

    names_no_model = not given_of_target and not given.keys() - {*HOW_IT_RUNS}
    if is_default and names_no_model and "stitch" in reads:
        return model, option("model", TARGET) | given
    name = str(model["name"])
    if PLACE_OF.get(name) in given_of_target:  # another model without a name of its own
        return model, option("model", name) | how_it_runs | given_of_target
    return model, model | given_of_target
