"""The coordination store is out, slow, or loses what it knew."""

from typing import Final

from tests.sim.faults.family import SHORT, Families, Scene, Undo
from tests.sim.machines.coordination import StoreWeather
from tests.sim.world import MINUTE, SECOND

FAMILIES: Final = Families()
family = FAMILIES.add


def _store_weather(scene: Scene, weather: StoreWeather) -> Undo:
    scene.store.weather = weather

    def undo() -> None:
        if scene.store.weather is weather:
            scene.store.weather = StoreWeather()

    return undo


@family("F40", "the lease is stolen or deleted", SHORT)
def steal_lease(scene: Scene) -> Undo | None:
    if scene.store.lease is None:
        return None
    if scene.dice.random() < 0.5:
        scene.store.delete_lease()
    else:
        scene.store.steal_lease("somebody")
    return lambda: None


@family("F41", "an object of the store is deleted, and restored")
def delete_object(scene: Scene) -> Undo | None:
    keys = sorted(scene.store.objects)
    if not keys:
        return None
    key = scene.dice.choice(keys)
    scene.store.delete(key)
    return scene.store.mend


@family("F42", "the store is out", (SECOND, 5 * MINUTE))
def store_outage(scene: Scene) -> Undo | None:
    return _store_weather(scene, StoreWeather(is_out=True))


@family("F43", "the store throttles, is slow, does writes late or twice, and loses answers")
def store_storm(scene: Scene) -> Undo | None:
    dice = scene.dice
    return _store_weather(
        scene,
        StoreWeather(
            service_us=dice.choice((500, 20_000, 100_000)),
            refusals=dice.choice((0, 0.1, 0.5)),
            lost_answers=dice.choice((0, 0.1, 0.3)),
            late_calls=dice.choice((0, 0.1)),
            repeated_calls=dice.choice((0, 0.1)),
            false_conflicts=dice.choice((0, 0.1, 0.5)),
        ),
    )


@family("F45", "the store is restored from an old backup, and then from the newest")
def restore_store(scene: Scene) -> Undo | None:
    if scene.store.revision < 2:
        return None
    scene.store.restore(scene.dice.randrange(1, scene.store.revision))
    return scene.store.mend
