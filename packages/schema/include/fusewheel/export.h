// What a library shows to those who load it: functions that Python calls by name.
#pragma once

#if defined(_WIN32)
#define FUSEWHEEL_EXPORT extern "C" __declspec(dllexport)
#else
#define FUSEWHEEL_EXPORT extern "C" __attribute__((visibility("default")))
#endif
